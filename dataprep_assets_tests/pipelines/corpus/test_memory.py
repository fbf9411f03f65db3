"""Peak memory of a worker does not follow the size of its shard, nor the number of distinct strings it has seen."""

import json
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from dataprep_assets.execution.processes import ONE_THREAD
from dataprep_assets_tests.pipelines.corpus.shards import stream_plan

pytestmark = pytest.mark.slow

CEILING = 1500 << 20
"""Bytes that a worker may hold at its peak."""

# Read VmHWM instead of ru_maxrss, because a child process inherits ru_maxrss from its parent. The plan comes from the
# parent, as for a real worker. Certifying an engine leaves 170 to 290 MB of heap in its process, with a layout that
# depends on the threads of both engines. Later encoding in that process therefore peaks up to 170 MB higher in one run
# than in the next.
_ENCODE = r"""
import json, pickle, re, sys
from pathlib import Path
from dataprep_assets_tests.pipelines.corpus.shards import build, shard_work, source
plan = pickle.loads(Path(sys.argv[3]).read_bytes())
shard = build(shard_work(Path(sys.argv[2]), plan, [source(Path(sys.argv[1]))]))
peak = int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
print(json.dumps([shard.ledger.documents, shard.ledger.tokens, peak]))
"""


def encoded(path: Path, out: Path) -> tuple[int, int, int]:
    """Documents, tokens and peak resident bytes of a process that encodes one file and seals its shard."""
    plan = out.with_suffix(".plan")
    plan.write_bytes(pickle.dumps(stream_plan(sample_rate=0.0005)))
    done = subprocess.run(
        [sys.executable, "-c", _ENCODE, path, out, plan],
        stdout=subprocess.PIPE,
        check=True,
        timeout=240,
        text=True,
        env={**ONE_THREAD, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    documents, tokens, peak = json.loads(done.stdout)
    return documents, tokens, peak


def write_distinct(path: Path, documents: int, characters: int) -> Path:
    """Documents of long words, none of which occurs twice."""
    generator = random.Random(characters)
    with open(path, "wb") as file, zstandard.ZstdCompressor(level=1).stream_writer(file) as writer:
        for _ in range(documents):
            word = generator.randbytes(characters // 2).hex()
            writer.write(b'{"text": "%s"}\n' % word.encode())
    return path


def test_a_million_distinct_long_strings_are_not_remembered(tmp_path: Path) -> None:
    few = encoded(write_distinct(tmp_path / "few.jsonl.zst", 300_000, 100), tmp_path / "few")
    many = encoded(write_distinct(tmp_path / "many.jsonl.zst", 1_000_000, 100), tmp_path / "many")
    assert (few[0], many[0]) == (300_000, 1_000_000)
    assert many[2] < CEILING
    # 70 MB more text and 45 M more tokens may add only 8 bytes per document end and the allocator's noise.
    assert many[2] - few[2] < 100 << 20


def test_the_peak_is_flat_in_the_size_of_a_shard(tmp_path: Path) -> None:
    line = json.dumps({"text": "The same sentence of ordinary words, again and again. " * 40}).encode() + b"\n"
    peaks = []
    for megabytes in (80, 240):  # both files have at least 20 blocks
        path = tmp_path / f"{megabytes}.jsonl.zst"
        path.write_bytes(zstandard.ZstdCompressor(level=1).compress(line * (megabytes * 1_000_000 // len(line))))
        peaks.append(encoded(path, tmp_path / str(megabytes))[2])
    assert max(peaks) < CEILING
    assert peaks[1] - peaks[0] < 100 << 20


def test_a_shard_of_one_line_of_sixteen_million_characters_stays_under_the_ceiling(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl.zst"
    path.write_bytes(zstandard.compress(json.dumps({"text": "one long line " * (16_000_000 // 14)}).encode()))
    assert encoded(path, tmp_path / "out")[2] < CEILING
