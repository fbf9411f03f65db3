"""The view `sft_rows` in axolotl's loader, next to what its strategy `chat_template` prepares from `messages`.

Both sets of rows also go through axolotl's collators. Its trainer removes the columns that no model takes.
Entry point: `compare`.
"""

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

from dataprep_assets_tests.tools.parity.absent import bare_package, empty_module
from dataprep_assets_tests.tools.parity.pinned import installed
from dataprep_assets_tests.tools.parity.sft_views import ROWS, lines, sequences, their_tokenizer, views
from dataprep_assets_tests.tools.parity.table import Row

_COLUMNS = ("input_ids", "labels", "attention_mask", "position_ids")
_KEYS = {"role": "role", "content": "content", "tool_calls": "tool_calls"}
"""Keys of a message. axolotl finds keys other than role and content only if the template reads them from `message`."""
_BATCH = 50


def compare(folder: Path) -> list[Row]:
    """Rows for both files of `messages` and for the batches. `folder` is a clone of axolotl-ai-cloud/axolotl."""
    prepare(folder)
    with tempfile.TemporaryDirectory() as scratch, views(Path(scratch), "messages", "sft_rows") as made:
        tokenizer, order, texts = their_tokenizer(made), list(sequences(made)), made.directory("messages")
        read = _load(tokenizer, {"path": str(made.directory("sft_rows"))})
        numbers = [line["extra_info"]["row"] - 1 for line in lines(made)]

        def prepared(path: Path, **options: Any) -> list[dict[str, Any]]:
            loaded = _load(tokenizer, {"path": str(path), "type": "chat_template", **options})
            taken = dict(zip(numbers, loaded, strict=True))
            return [taken[number] for number in order]

        by_file = {
            "train.jsonl": prepared(texts / "train.jsonl", message_property_mappings=_KEYS),
            "train/*.parquet": prepared(texts, message_property_mappings=_KEYS),
        }
        plain = prepared(texts / "train.jsonl")
    names = ", ".join(_COLUMNS)
    rows = [
        Row("sft_rows and messages in axolotl", shape, len(ROWS), _count_equal(read, theirs), 0, names)
        for shape, theirs in by_file.items()
    ]
    without_calls = sum(
        "tools" in ROWS[number] and one != read[at] for at, (number, one) in enumerate(zip(order, plain, strict=True))
    )
    note = "without message_property_mappings axolotl drops the calls of this template"
    rows.append(Row(rows[0].area, "no mappings", len(ROWS), _count_equal(read, plain), without_calls, note))
    batching = importlib.import_module("axolotl.utils.collators.batching")
    for name in (
        "DataCollatorForSeq2Seq",
        "BatchSamplerDataCollatorForSeq2Seq",
        "V2BatchSamplerDataCollatorForSeq2Seq",
    ):
        ours, theirs = (_batches(getattr(batching, name)(tokenizer), some) for some in (read, by_file["train.jsonl"]))
        rows.append(Row("batches of axolotl", name, len(ours), _count_equal(ours, theirs), 0, names))
    return rows


def prepare(folder: Path) -> None:
    """Make axolotl's modules importable, without those for models and for the rank of a process."""
    sys.path.append(str(installed("addict")))
    source = folder / "src" / "axolotl"
    for name in ("", "utils", "utils.data", "utils.collators", "utils.samplers", "utils.schemas"):
        bare_package(f"axolotl.{name}".rstrip("."), source.joinpath(*name.split(".")))
    for name in ("utils.samplers.multipack", "utils.environment", "loaders"):
        empty_module(f"axolotl.{name}")
    importlib.import_module("axolotl.utils.samplers").__dict__.update(
        MultipackBatchSampler=None, get_dataset_lengths=None
    )
    importlib.import_module("axolotl.utils.collators").__dict__.update(
        PretrainingBatchSamplerDataCollatorForSeq2Seq=None
    )


def _load(tokenizer: Any, dataset: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a dataset of the configuration, as the collator gets them."""
    configured = importlib.import_module("axolotl.utils.dict").DictDefault(
        sequence_len=2048,
        sample_packing=True,
        sample_packing_sequentially=True,
        datasets=[dataset],
        seed=1,
        is_preprocess=True,
        dataset_prepared_path=None,
        skip_prepare_dataset=False,
    )
    sft = importlib.import_module("axolotl.utils.data.sft")
    sft.save_preprocessed_dataset = lambda *_: None
    found, _ = sft._load_raw_datasets(configured, configured.datasets, tokenizer, "train")
    return found.select_columns(list(_COLUMNS)).to_list()


def _batches(collator: Any, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the batches of a collator. Those for packing take lists of rows, and make one packed row of each list."""
    batches = []
    for start in range(0, len(rows), _BATCH):
        taken = [dict(row) for row in rows[start : start + _BATCH]]
        batch = collator([taken] if "BatchSampler" in type(collator).__name__ else taken)
        batches.append({name: values.tolist() for name, values in batch.items()})
    return batches


def _count_equal(ours: list[Any], theirs: list[Any]) -> int:
    return sum(one == other for one, other in zip(ours, theirs, strict=True))
