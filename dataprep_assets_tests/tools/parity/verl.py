"""The view `messages` in verl's own dataset for SFT: ids of its rendering, and rows that it refuses.

verl renders each message by itself and trains all that the template writes after the generation prompt, as the newline
after an answer. It does not parse `tools`. Entry point: `compare`.
"""

import importlib
import tempfile
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any

from dataprep_assets_tests.tools.parity.absent import bare_package, empty_module, stand_in
from dataprep_assets_tests.tools.parity.sft_views import (
    ROWS,
    is_equal_but_newlines,
    lines,
    sequences,
    their_tokenizer,
    views,
)
from dataprep_assets_tests.tools.parity.table import Row


class _PadMode(StrEnum):
    RIGHT = "right"
    NO_PADDING = "no_padding"


def compare(folder: Path) -> list[Row]:
    """A row for the conversations. `folder` is a clone of volcengine/verl."""
    dataset_class = _dataset(folder / "verl")
    with tempfile.TemporaryDirectory() as scratch, views(Path(scratch), "messages", "sft_rows") as made:
        tokenizer, ours = their_tokenizer(made), sequences(made)
        apply = tokenizer.apply_chat_template
        # Use `return_dict=False`, the default in the version of transformers that verl requires.
        tokenizer.apply_chat_template = lambda *args, **named: apply(*args, **{"return_dict": False, **named})
        options = {"pad_mode": "no_padding", "max_length": 2048}
        dataset = dataset_class(str(made.directory("messages") / "train"), tokenizer, options)
        equal = refused = 0
        for number, line in enumerate(lines(made)):
            source = line["extra_info"]["row"] - 1
            if "tools" in line:
                refused += _is_refused(dataset, number)
            else:
                taken = dataset[number]
                equal += is_equal_but_newlines(
                    taken["input_ids"].tolist(), taken["loss_mask"].tolist(), *ours[source], tokenizer
                )
    note = f"{equal} equal except for the newline after an answer, which verl trains; {refused} with tools are refused"
    return [Row("messages in verl", "train/*.parquet", len(ROWS), equal, refused, note)]


def _dataset(verl: Path) -> Any:
    stand_in("omegaconf", "tensordict")
    # The stand-ins replace packages that are not available here. The types of these packages are used only with
    # `isinstance`.
    for name in ("", "utils", "utils.dataset", "models", "models.transformers"):
        bare_package(f"verl.{name}".rstrip("."), verl.joinpath(*name.split(".")))
    for name in ("models.transformers.qwen2_vl", "utils.dataset.vision_utils"):
        empty_module(f"verl.{name}")
    modes = ModuleType("verl.utils.dataset.dataset_utils")
    modes.DatasetPadMode = _PadMode  # type: ignore[attr-defined]
    files = ModuleType("verl.utils.fs")
    files.copy_local_path_from_hdfs = lambda path, **_: path  # type: ignore[attr-defined]
    importlib.import_module("sys").modules.update({modes.__name__: modes, files.__name__: files})
    importlib.import_module("verl.utils").hf_tokenizer = None  # type: ignore[attr-defined]
    return importlib.import_module("verl.utils.dataset.multiturn_sft_dataset").MultiTurnSFTDataset


def _is_refused(dataset: Any, number: int) -> bool:
    try:
        dataset[number]
    except (ValueError, TypeError):
        return True
    return False
