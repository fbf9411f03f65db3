"""The view `sft_rows` in SkyRL's reader of pretokenized data, next to what SkyRL prepares from `messages`.

Both sets of examples also go through SkyRL's collators. SkyRL's own window of the loss begins with the header of the
first answer, whose mask is 0. The window of pretokenized rows begins with the first trained token.
Entry point: `compare`.
"""

import importlib
import tempfile
from pathlib import Path
from typing import Any

from dataprep_assets_tests.tools.parity.absent import bare_package, empty_module, stand_in
from dataprep_assets_tests.tools.parity.sft_views import ROWS, lines, sequences, their_tokenizer, views
from dataprep_assets_tests.tools.parity.table import Row

_BATCH, _CAPACITY = 50, 2048
_PACKAGES = (
    "",
    "backends",
    "backends.skyrl_train",
    "backends.skyrl_train.distributed",
    "backends.skyrl_train.distributed.megatron",
    "backends.skyrl_train.utils",
    "train",
    "train.dataset",
    "train.generators",
)
_UNUSED = (
    "backends.skyrl_train.inference_servers.base",
    "backends.skyrl_train.utils.io",
    "backends.skyrl_train.utils.replay_utils",
    "backends.skyrl_train.workers.worker",
    "backends.skyrl_train.workers.worker_dispatch",
    "env_vars",
    "train.config",
    "train.config.sft_config",
    "train.generators.base",
    "train.utils",
    "train.utils.async_batch_collator",
    "train.utils.callbacks",
    "train.utils.ray_gpu_monitor",
    "train.utils.tracking",
    "train.utils.trainer_utils",
    "train.utils.utils",
    "utils.tok",
)
"""Modules of distributed training, configuration and logging."""


class _TrainOnWhat:
    LAST_ASSISTANT_MESSAGE = "last"
    ALL_ASSISTANT_MESSAGES = "all"


def compare(folder: Path) -> list[Row]:
    """A row for the examples and two for the batches. `folder` is a clone of NovaSky-AI/SkyRL."""
    trainer, collators = _modules(folder / "skyrl")
    reader = importlib.import_module("skyrl.train.dataset.pretokenized")
    with tempfile.TemporaryDirectory() as scratch, views(Path(scratch), "messages", "sft_rows") as made:
        tokenizer, order = their_tokenizer(made), list(sequences(made))
        read = list(reader.load_from_pretokenized(str(made.directory("sft_rows") / "train"), max_length=_CAPACITY))
        prepared = {
            line["extra_info"]["row"] - 1: trainer.tokenize_chat_example(line, tokenizer, train_on_what="all")
            for line in lines(made)
        }
    theirs = [prepared[number] for number in order]
    ours = [{name: row[name] for name in theirs[0]} for row in read]
    equal = sum(_full(one) == _full(other) for one, other in zip(ours, theirs, strict=True))
    note = "input_ids and mask of tokenize_chat_example, which trains all assistant messages"
    rows = [Row("sft_rows in SkyRL", "pretokenized_dataset_paths", len(ROWS), equal, 0, note)]
    default = collators.DefaultCollator(tokenizer, _BATCH)
    packed = collators.PackedDataCollator(tokenizer, _CAPACITY, 1, 1, 1, 1, _BATCH, _BATCH)
    for collator in (default, packed):
        pairs = [
            [collator(some[start : start + _BATCH], batch_size=_BATCH) for some in (ours, theirs)]
            for start in range(0, len(ours), _BATCH)
        ]
        same = sum(_content(one) == _content(other) for one, other in pairs)
        names = ", ".join(_content(pairs[0][0]))
        rows.append(Row("batches of SkyRL", type(collator).__name__, len(pairs), same, 0, names))
    return rows


def _modules(skyrl: Path) -> tuple[Any, Any]:
    stand_in("ray", "torchdata", "jaxtyping", "skyrl_gym")
    for name in _PACKAGES:
        bare_package(f"skyrl.{name}".rstrip("."), skyrl.joinpath(*name.split(".")))
    for name in _UNUSED:
        empty_module(f"skyrl.{name}")
    importlib.import_module("skyrl.train.config.sft_config").TrainOnWhat = _TrainOnWhat
    importlib.import_module("loguru").logger.disable("skyrl")
    return importlib.import_module("skyrl.train.sft_trainer"), importlib.import_module("skyrl.train.dataset.collators")


def _full(example: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Return the ids, and the mask of all ids instead of the window."""
    before = len(example["input_ids"]) - example["num_actions"]
    return example["input_ids"], [0] * before + example["loss_mask"]


def _content(batch: Any) -> dict[str, Any]:
    """Return the values of a batch as lists, and the mask without the columns before the first trained token."""
    named = {name: batch[name] for name in batch if batch[name] is not None}
    content = {name: [row.tolist() for row in values] for name, values in named.items()}
    first = int(named["loss_mask"].any(dim=0).int().argmax())
    return content | {"loss_mask": [row[first:] for row in content["loss_mask"]]}
