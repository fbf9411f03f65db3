"""Measure the memory and CPU of all workers of a run together: `python -m dataprep_assets_tests.tools.bench.memory`.

Eight workers tokenize the files: once as forks of one process that has loaded the tokenizer, like in the project, and
once as workers that each load it. Printed are the peak sum of their memory (proportional set sizes: of a page that n
processes share, each counts an n-th) and the CPU seconds of all processes.
"""

import argparse
import os
import statistics
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

from dataprep_assets.execution import processes
from dataprep_assets_tests.tools.bench.__main__ import CORPUS, TOKENIZER
from dataprep_assets_tests.tools.bench.comparison import REPOSITORY, Comparison, find_corpus
from dataprep_assets_tests.tools.bench.contenders import Spec, ours
from dataprep_assets_tests.tools.bench.runner import Measurement, measure

TARGET = 2.5e9
"""The bytes of eight workers."""
_SAMPLE_SECONDS = 0.1


def descendants(pid: int) -> list[int]:
    """Return a process and all its living descendants."""
    found, parents = [pid], [pid]
    while parents:
        below: list[int] = []
        for one in parents:
            try:
                below += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
            except OSError:
                continue
        found += below
        parents = below
    return found


def proportional_bytes(pid: int) -> int:
    """Return the proportional set size of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


class Watch:
    """The peak sum of the memory of this process's descendants during the block."""

    def __init__(self) -> None:
        self.peak = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._ended.wait(_SAMPLE_SECONDS):
            self.peak = max(self.peak, sum(map(proportional_bytes, descendants(os.getpid())[1:])))

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._ended.set()
        self._thread.join()


def measured(spec: Spec, scratch: Path, *, forked: bool) -> tuple[int, Measurement]:
    """Return the peak sum of memory, and the runner's measurements, of a run in its own processes."""
    with tempfile.TemporaryDirectory(dir=scratch) as out:
        path = Path(out, "spec.json")
        replace(spec, contender="d", out=out).write(path)
        command = [sys.executable, "-m", "dataprep_assets_tests.tools.bench.memory", "--spec", str(path)]
        with Watch() as watch:
            found = measure([*command, *([] if forked else ["--each"])], {"PYTHONPATH": str(REPOSITORY)})
    return watch.peak, found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 if the target is missed."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.bench.memory", description=__doc__)
    parser.add_argument("--data", type=Path, default=CORPUS, help="folder with .jsonl.zst files")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=4, help="how often the files are gone over in a run")
    parser.add_argument("--spec", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--each", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(argv)
    if asked.spec is not None:
        start_method = "spawn" if asked.each else "forkserver"
        with mock.patch.object(processes, "_start_method", return_value=start_method):
            ours(Spec.read(asked.spec))
        return 0
    with tempfile.TemporaryDirectory(prefix="dataprep-bench-") as folder:
        scratch = Path(folder)
        corpus = find_corpus(asked.data)
        compared = Comparison(
            corpus, asked.tokenizer, workers=asked.workers, repeat=1, sample_rate=0.0005, of_floor=0, scratch=scratch
        )
        spec = replace(compared.spec, files=compared.spec.files * asked.repeat)
        peaks: dict[bool, list[int]] = {True: [], False: []}
        cpu: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(asked.runs):
            for forked in (True, False):
                peak, found = measured(spec, scratch, forked=forked)
                peaks[forked].append(peak)
                cpu[forked].append(found.cpu)
    print(f"{asked.workers} workers, {corpus.text_bytes * asked.repeat / 1e6:.0f} MB of text, medians of {asked.runs}")
    for forked, name in ((True, "forks of one process"), (False, "each loads everything")):
        peak, seconds = statistics.median(peaks[forked]), statistics.median(cpu[forked])
        print(f"{name:24} {peak / 1e9:.2f} GB in all, {seconds:.1f} CPU-s")
    peak = statistics.median(peaks[True])
    print(f"target: at most {TARGET / 1e9:.1f} GB in all: {'met' if peak <= TARGET else 'missed'}")
    return int(peak > TARGET)


if __name__ == "__main__":
    sys.exit(main())
