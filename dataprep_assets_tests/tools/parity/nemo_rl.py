"""The view `messages` in NeMo-RL's own reader of OpenAI's form. Entry point: `compare`."""

import importlib
import tempfile
from pathlib import Path

from dataprep_assets_tests.tools.parity.absent import bare_package, empty_module
from dataprep_assets_tests.tools.parity.sft_views import ROWS, lines, views
from dataprep_assets_tests.tools.parity.table import Row

_PACKAGES = ("", "data", "data.datasets", "data.datasets.response_datasets")


def compare(folder: Path) -> list[Row]:
    """A row for the conversations. `folder` is a clone of NVIDIA-NeMo/RL."""
    for name in _PACKAGES:
        bare_package(f"nemo_rl.{name}".rstrip("."), (folder / "nemo_rl").joinpath(*name.split(".")))
    # Replace the module of the dataset's base class with an empty module, because this class has only settings.
    empty_module("nemo_rl.data.datasets.raw_dataset")
    module = importlib.import_module("nemo_rl.data.datasets.response_datasets.oai_format_dataset")
    with tempfile.TemporaryDirectory() as scratch, views(Path(scratch), "messages") as made:
        path = made.directory("messages") / "train.jsonl"
        dataset = module.OpenAIFormatDataset(str(path), use_preserving_dataset=True).dataset
        numbers = [line["extra_info"]["row"] - 1 for line in lines(made)]
        equal = sum(
            {key: row[key] for key in ("messages", "tools") if key in row} == ROWS[number]
            for number, row in zip(numbers, dataset, strict=True)
        )
    note = "messages and tools by OpenAIFormatDataset, with use_preserving_dataset"
    return [Row("messages in NeMo-RL", "train.jsonl", len(ROWS), equal, 0, note)]
