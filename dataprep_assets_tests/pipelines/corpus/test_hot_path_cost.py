"""The hot path does not become dearer unseen: what Python does for each document is counted, not timed.

Native code does nearly all of the work, so what a change is likely to cost is one more Python step, call or object a
document, or one more copy of a block. Counts are the same on any machine; of another Python, or other versions of the
libraries, they are others.
"""

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from dataprep_assets.stream.part_encoder import encode_part
from dataprep_assets.stream.token_stream import EncodedPart, PartFiles
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets_tests.pipelines.corpus.sample_shards import make_plan, source_part
from dataprep_assets_tests.samples import SAMPLE

RECORDED = {"instructions a document": 63.5, "calls a document": 3.82, "peak bytes a source byte": 36.4}
"""Of Python 3.11: bytecode instructions and calls (Python's and C's) a document; largest memory at any time that Python
and NumPy asked for, over the bytes of the compressed file. Twelve of the instructions and one call are worth one search
for literal special tokens instead of three: 0.01 of the 1.7 CPU-s of 68 MB, and 0.15 less where tokens begin in several
ways (docs/benchmarks.md). A tenth of the calls are made once per file of 300 documents: rewriters, carried fields and
drawn rows are looked up there."""
WORSE = 1.1


def encoder(folder: Path) -> Callable[[], EncodedPart]:
    """Encodes one file of the sample; what is loaded once a process is loaded."""
    plan = make_plan(TokenizerBundle.load(SAMPLE / "tokenizer"))
    path = max((SAMPLE / "data").rglob("*.jsonl.zst"), key=lambda file: file.stat().st_size)
    part, numbers = source_part(path, "train", 0), count()

    def encoded() -> EncodedPart:
        number = next(numbers)
        return encode_part(
            plan, part, PartFiles(**{kind: folder / f"{number}.{kind}" for kind in ("tokens", "ends", "ids", "rows")})
        )

    encoded()
    return encoded


@contextmanager
def counted(counts: dict[str, int]) -> Iterator[None]:
    """Count what this thread does inside: `instructions` of bytecode, and `calls`."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        counts["instructions"] += event == "opcode"
        return trace

    def profile(_frame: FrameType, event: str, _: Any) -> None:
        counts["calls"] += event in ("call", "c_call")

    before = sys.gettrace(), sys.getprofile()
    sys.setprofile(profile)
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])


def measure(folder: Path) -> dict[str, float]:
    """Encode twice, and return the figures of `RECORDED`."""
    encode = encoder(folder)
    counts = {"instructions": 0, "calls": 0}
    with counted(counts):
        documents = encode().ledger.documents
    gc.collect()
    tracemalloc.start()
    try:
        source_bytes = encode().ledger.source_bytes
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return {
        "instructions a document": counts["instructions"] / documents,
        "calls a document": counts["calls"] / documents,
        "peak bytes a source byte": peak / source_bytes,
    }


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the counts are those of Python 3.11's bytecode")
def test_a_document_costs_no_more_python_and_memory_than_it_did(tmp_path: Path) -> None:
    # Measure in a separate process, because calls of audit hooks are also counted. The tests of function taggers add
    # such hooks to this process, and a process cannot remove them.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        found = pool.submit(measure, tmp_path).result()
    dearer = {name: value for name, value in found.items() if value > WORSE * RECORDED[name]}
    assert not dearer, f"more than a tenth above {RECORDED}: make it cheaper, or record what it is worth"
    cheaper = {name: value for name, value in found.items() if value < RECORDED[name] / WORSE}
    assert not cheaper, f"record the new figures in {Path(__file__).name}: {found}"
