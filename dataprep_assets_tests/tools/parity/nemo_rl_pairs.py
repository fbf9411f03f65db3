"""The view `pairs_ranked` in NeMo-RL's dataset of preferences and its processor, next to the run's ids.

NeMo-RL encodes each message by itself, and trains the header of an answer as a part of it. Entry point: `compare`.
"""

import importlib
import tempfile
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

from dataprep_assets_tests.tools.parity.absent import bare_package, empty_module
from dataprep_assets_tests.tools.parity.pair_views import ROWS, TEMPLATE, pair_views, stored_ids
from dataprep_assets_tests.tools.parity.sft_views import their_tokenizer
from dataprep_assets_tests.tools.parity.table import Row

_PACKAGES = ("", "data", "data.datasets", "data.datasets.preference_datasets", "distributed")
_SIDES = ("chosen", "rejected")


def compare(folder: Path) -> list[Row]:
    """A row for the pairs. `folder` is a clone of NVIDIA-NeMo/RL."""
    for name in _PACKAGES:
        bare_package(f"nemo_rl.{name}".rstrip("."), (folder / "nemo_rl").joinpath(*name.split(".")))
    for name in ("data.datasets.raw_dataset", "data.multimodal_utils", "distributed.batched_data_dict"):
        empty_module(f"nemo_rl.{name}")
    dataset_class = importlib.import_module(
        "nemo_rl.data.datasets.preference_datasets.preference_dataset"
    ).PreferenceDataset
    messages = importlib.import_module("nemo_rl.data.llm_message_utils")
    messages.get_multimodal_default_settings_from_processor = lambda _: {}
    messages.load_media_from_message = lambda *_, **__: {}
    process = importlib.import_module("nemo_rl.data.processors").preference_preprocessor
    with tempfile.TemporaryDirectory() as scratch, pair_views(Path(scratch), "pairs_ranked") as made:
        tokenizer, ours = their_tokenizer(made, TEMPLATE), stored_ids(made)
        rows = dataset_class(str(made.directory("pairs_ranked") / "train.jsonl")).dataset
        spec = SimpleNamespace(prompt=None)
        theirs = [process(row, spec, tokenizer, 2048, number) for number, row in enumerate(rows)]
    header = tokenizer("<|im_start|>assistant\n", add_special_tokens=False)["input_ids"]
    equal = 0
    for row, taken in zip(ours, theirs, strict=True):
        logs = {side: [one["token_ids"].tolist() for one in taken[f"message_log_{side}"]] for side in _SIDES}
        equal += all(
            list(chain(*log)) == row["prompt_ids"] + row[f"{side}_ids"] and log[-1] == header + row[f"{side}_ids"]
            for side, log in logs.items()
        )
    note = "ids of prompt and answer; it also trains the header of each answer and the newline after it"
    return [Row("pairs_ranked in NeMo-RL", "train.jsonl", len(ROWS), equal, 0, note)]
