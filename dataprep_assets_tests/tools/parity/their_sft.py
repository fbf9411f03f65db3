"""Sequences and packed files as Nemotron's `data_prep` makes them, in a process with the transformers that it pins.

`nemotron_sft.py` runs it (`pinned.run_apart`). A job has the paths of a tokenizer and of a scratch folder, and a list
of `{template, rows}`; the answer has for each of them the sequences of each row, `[ids, trained]`. With `pack`, the
rows are packed instead: the answer is the path of the Parquet file. With `marks` the original is told how the template
begins and ends an answer, where it takes the marks of its own templates for granted.
"""

import importlib
import inspect
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from fsspec import filesystem

from dataprep_assets_tests.tools.parity.absent import stand_in

_CORE = "nemotron.data_prep.core.chat_sft_shard_core"
_ROWS = "nemotron.data_prep.core.chat_template"
_MARKS = ("<|im_start|>assistant\\n<think></think>", "<|im_end|>\\n")
"""The texts in its source for the prompt of an answer without reasoning, and for the end of a turn, in any template."""
PACK_SIZE = 1 << 20
Sequence = tuple[list[int], list[int]]
"""Ids, and whether each is trained."""


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a job."""
    logging.disable(logging.WARNING)
    stand_in("cosmos_xenna")
    tokenizer, scratch = transformers.AutoTokenizer.from_pretrained(job["tokenizer"]), Path(job["scratch"])
    made: list[Any] = []
    for number, task in enumerate(job["tasks"]):
        at = scratch / str(number)
        _told(task.get("marks", _MARKS))
        if "pack" in task:
            made.append(str(_packed(task["template"], tokenizer, task["rows"], at, **task["pack"])))
        else:
            made.append(list(_sequences(task["template"], tokenizer, task["rows"], at)))
    return {"transformers": transformers.__version__, "made": made}


def _told(marks: tuple[str, str]) -> None:
    """Make the upstream functions use these marks, written as in its source, for a prompt and an end."""
    rows, core = importlib.import_module(_ROWS), importlib.import_module(_CORE)
    source = inspect.getsource(rows)
    for its, told in zip(_MARKS, marks, strict=True):
        assert its in source, "the original's marks are other ones"
        source = source.replace(its, told)
    exec(compile(source, str(rows.__file__), "exec"), rows.__dict__)
    for name, value in vars(rows).items():
        if callable(value) and getattr(value, "__module__", "") == _ROWS and hasattr(core, name):
            setattr(core, name, value)


def _sequences(template: str, tokenizer: Any, given: list[dict[str, Any]], scratch: Path) -> Iterator[list[Sequence]]:
    packing, files = importlib.import_module("nemotron.data_prep.packing.spool"), filesystem("file")
    for number, row in enumerate(given):
        spooled = _spool(template, tokenizer, [row], scratch / str(number))
        reader = packing.SequenceSpoolReader(fs=files, paths=packing.SequenceSpoolPaths.for_root(str(spooled)))
        count = len(reader.load_offsets_and_lengths()[1])
        sequences = [reader.read_sequence(index) for index in range(count)]
        # The first token of a sequence is never a label, so the trainer's mask leaves out this token.
        yield [(ids.tolist(), [0, *mask.tolist()[1:]]) for ids, mask in sequences]


def _spool(template: str, tokenizer: Any, given: list[dict[str, Any]], folder: Path) -> Path:
    folder.mkdir(parents=True)
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in given), encoding="utf-8")
    importlib.import_module(_CORE).process_chat_sft_spool_core(
        shard_index=0,
        files=[{"path": str(path), "local_path": str(path), "size": 1}],
        output_dir=str(folder),
        receipts_dir=str(folder / "receipts"),
        spool_dir=str(folder / "spool"),
        output_fs=filesystem("file"),
        tokenizer=tokenizer,
        messages_field="messages",
        tools_field="tools",
        pack_size=PACK_SIZE,
        algorithm="first_fit_shuffle",
        dtype=np.dtype(np.int32),
        chat_template=template,
        max_doc_tokens=None,
        max_rows=None,
        seed=42,
        used_in_filter=None,
        used_in_field="used_in",
    )
    return folder / "spool"


def _packed(
    template: str, tokenizer: Any, given: list[dict[str, Any]], folder: Path, *, algorithm: str, pack_size: int
) -> Path:
    spooled = _spool(template, tokenizer, given, folder)
    importlib.import_module(_CORE).process_chat_sft_parquet_from_spool_core(
        shard_index=0,
        output_dir=str(folder),
        spool_dir=str(spooled),
        output_fs=filesystem("file"),
        pack_size=pack_size,
        algorithm=algorithm,
        dtype=np.dtype(np.int32),
        seed=42,
    )
    return folder / "shard_000000.parquet"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(answer(json.load(sys.stdin))))
