"""The view `pairs_sharegpt` in LLaMA-Factory's preparation for pairs, next to the run's ids.

Its template `qwen` equals the template of the run. It trains all that the template writes after the prompt, such as the
newline after an answer. Entry point: `compare`.
"""

import tempfile
from pathlib import Path

from dataprep_assets_tests.tools.parity.llama_factory import load, prepare
from dataprep_assets_tests.tools.parity.pair_views import ROWS, TEMPLATE, pair_views, stored_ids
from dataprep_assets_tests.tools.parity.sft_views import their_tokenizer
from dataprep_assets_tests.tools.parity.table import Row


def compare(folder: Path) -> list[Row]:
    """A row for the pairs. `folder` is a clone of hiyouga/LLaMA-Factory."""
    prepare(folder)
    with tempfile.TemporaryDirectory() as scratch, pair_views(Path(scratch), "pairs_sharegpt") as made:
        ours, view = stored_ids(made), str(made.directory("pairs_sharegpt"))
        theirs = load(their_tokenizer(made, TEMPLATE), "rm", dataset_dir=view, dataset=["small_pairs_train"])
    equal = 0
    for row, taken in zip(ours, theirs, strict=True):
        prompt = row["prompt_ids"]
        equal += all(
            taken[f"{side}_input_ids"] == prompt + row[f"{side}_ids"]
            and taken[f"{side}_labels"] == [-100] * len(prompt) + row[f"{side}_ids"]
            for side in ("chosen", "rejected")
        )
    note = "ids of prompt, chosen and rejected; it also trains the newline after each answer"
    return [Row("pairs_sharegpt in LLaMA-Factory", "ranking: true", len(ROWS), equal, 0, note)]
