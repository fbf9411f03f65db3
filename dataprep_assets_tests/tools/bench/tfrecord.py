"""Write packed rows to TFRecord files and validate them: this project compared with TensorFlow, in one process.

`python -m dataprep_assets_tests.tools.bench.tfrecord` prints medians of interleaved runs, and the speed-up over the
usual way: `json.loads`, `tf.train.Example`, `tf.io.TFRecordWriter`; a `TFRecordDataset` of parsed rows. All writers
must write the same bytes, and all readers must read every row. Needs TensorFlow and pysimdjson.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep_assets.formats.tensorflow import example, tfrecord
from dataprep_assets_tests.formats.packed import declare_columns, make_packed_rows
from dataprep_assets_tests.formats.shard_reader import read_batches

_USUAL = "json.loads + tf.train.Example"
_FROM_LISTS = "tf.train.Example from lists in memory"
_COHORT = "2004-07"
_BLOCK_ROWS = 64

Rows = dict[str, npt.NDArray[Any]]
Lists = list[dict[str, list[int]]]


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A way to do the work. ``run`` gets an empty folder to write to; ``target`` is the minimum ratio to ``beside``."""

    name: str
    run: Callable[[Path], None]
    beside: str | None = None
    target: float | None = None


def _shard_paths(out: Path, rows: int) -> Iterator[tuple[slice, Path]]:
    step = tfrecord.ROWS_PER_SHARD
    parts = [slice(start, min(start + step, rows)) for start in range(0, rows, step)]
    for index, part in enumerate(parts):
        yield part, out / tfrecord.build_shard_name(_COHORT, index, len(parts))


def _tensorflow_payload(tf: Any, row: dict[str, Any]) -> bytes:
    features = {name: tf.train.Feature(int64_list=tf.train.Int64List(value=values)) for name, values in row.items()}
    # Serialize deterministically, so that the bytes can be compared; this has no measurable cost.
    payload: bytes = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(
        deterministic=True
    )
    return payload


def _with_tensorflow(tf: Any, rows: Sequence[Any], parse: Callable[[Any], dict[str, Any]], out: Path) -> None:
    for part, path in _shard_paths(out, len(rows)):
        with tf.io.TFRecordWriter(str(path)) as writer:
            for row in rows[part]:
                writer.write(_tensorflow_payload(tf, parse(row)))


def _parse_blocks(lines: Sequence[bytes]) -> Iterator[Rows]:
    """Yield columns of some lines at a time: simdjson returns each list as one buffer of int64."""
    import simdjson

    parser = simdjson.Parser()
    for start in range(0, len(lines), _BLOCK_ROWS):
        block = lines[start : start + _BLOCK_ROWS]
        rows: Rows = {}
        for at, line in enumerate(block):
            document = parser.parse(line)
            for name in document:
                values = np.frombuffer(document[name].as_buffer(of_type="i"), np.int64)
                if name not in rows:
                    rows[name] = np.empty((len(block), values.size), np.int32)
                rows[name][at] = values
            # The parser refuses the next line while any object of this line exists.
            del document
        yield rows


def _ours_from_lines(jsonl: Path, out: Path) -> None:
    lines = jsonl.read_bytes().splitlines()
    for part, path in _shard_paths(out, len(lines)):
        payloads = (payload for rows in _parse_blocks(lines[part]) for payload in example.encode_rows(rows))
        tfrecord.write(path, payloads)


def _ours_from_memory(rows: Rows, out: Path) -> None:
    for part, path in _shard_paths(out, len(rows["inputs"])):
        tfrecord.write(path, example.encode_rows({name: values[part] for name, values in rows.items()}))


def _writers(tf: Any, rows: Rows, jsonl: Path) -> list[Contender]:
    count = len(rows["inputs"])
    lists: Lists = [{name: values[row].tolist() for name, values in rows.items()} for row in range(count)]
    return [
        Contender(
            name=_USUAL,
            run=lambda out: _with_tensorflow(tf, jsonl.read_bytes().splitlines(), json.loads, out),
        ),
        Contender(
            name=_FROM_LISTS,
            run=lambda out: _with_tensorflow(tf, lists, lambda row: row, out),
            beside=_USUAL,
        ),
        Contender(
            name="ours from JSON lines",
            run=lambda out: _ours_from_lines(jsonl, out),
            beside=_USUAL,
            target=4,
        ),
        Contender(
            name="ours from arrays in memory",
            run=lambda out: _ours_from_memory(rows, out),
            beside=_FROM_LISTS,
            target=8,
        ),
    ]


def _readers(tf: Any, rows: Rows, files: Sequence[Path]) -> list[Contender]:
    count, length = rows["inputs"].shape
    features = {name: tf.io.FixedLenFeature([length], tf.int64) for name in rows}
    columns = declare_columns(rows)

    def theirs(_: Path) -> None:
        records = tf.data.TFRecordDataset([str(path) for path in files])
        seen = sum(1 for _ in records.map(lambda record: tf.io.parse_single_example(record, features)))
        assert seen == count

    def decoded(_: Path) -> None:
        batches = (batch for path in files for batch in read_batches(path, columns))
        assert sum(len(batch["inputs"]) for batch in batches) == count

    usual = "TFRecordDataset + parse_single_example"
    return [
        Contender(name=usual, run=theirs),
        Contender(name="ours, every value decoded", run=decoded, beside=usual),
    ]


def _seconds(contenders: Sequence[Contender], runs: int, scratch: Path) -> dict[str, float]:
    """Return the median seconds of each; the contenders run in turn, each with a new folder, of which the last
    is kept.
    """
    found: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for run in range(runs + 1):
        for contender in contenders:
            out = scratch / contender.name / str(run)
            out.mkdir(parents=True)
            started = time.perf_counter()
            contender.run(out)
            # Leave out the first run, because it also fills caches and allocators, and traces functions.
            if run:
                found[contender.name].append(time.perf_counter() - started)
            if run < runs:
                for path in out.iterdir():
                    path.unlink()
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def _report(contenders: Sequence[Contender], seconds: dict[str, float], rows: int) -> None:
    for contender in contenders:
        line = f"{contender.name:40} {seconds[contender.name]:8.3f} s {rows / seconds[contender.name]:9,.0f} rows/s"
        if contender.beside:
            ratio = seconds[contender.beside] / seconds[contender.name]
            line += f" {ratio:6.1f}x {contender.beside}"
            if contender.target:
                line += f" (target {contender.target:g}x: {'met' if ratio >= contender.target else 'not met'})"
        print(line)


def _assert_equal_bytes(contenders: Sequence[Contender], scratch: Path, runs: int) -> list[Path]:
    """Assert that the files of all writers are equal, and return those of the first."""
    first, *others = [sorted((scratch / contender.name / str(runs)).iterdir()) for contender in contenders]
    for files in others:
        assert [path.name for path in files] == [path.name for path in first]
        assert all(a.read_bytes() == b.read_bytes() for a, b in zip(first, files, strict=True)), files
    return first


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--runs", type=int, default=5)
    chosen = parser.parse_args(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    rows = make_packed_rows(chosen.rows, chosen.length)
    with tempfile.TemporaryDirectory(prefix="dataprep-bench-") as folder:
        jsonl = Path(folder, f"{_COHORT}.jsonl")
        with open(jsonl, "w") as handle:
            for row in range(chosen.rows):
                handle.write(json.dumps({name: values[row].tolist() for name, values in rows.items()}) + "\n")
        writers = _writers(tf, rows, jsonl)
        written = _seconds(writers, chosen.runs, Path(folder))
        files = _assert_equal_bytes(writers, Path(folder), chosen.runs)
        size = sum(path.stat().st_size for path in files)
        print(f"{chosen.rows:,} rows of {chosen.length:,}, five columns: {size / 1e6:.1f} MB, medians of {chosen.runs}")
        _report(writers, written, chosen.rows)
        print("The bytes of all are equal.\n")
        readers = _readers(tf, rows, files)
        _report(readers, _seconds(readers, chosen.runs, Path(folder)), chosen.rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
