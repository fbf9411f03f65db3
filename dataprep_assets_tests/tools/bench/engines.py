"""Measure the overhead of an engine, for `cli.plan`: `python -m dataprep_assets_tests.tools.bench.engines`.

Each engine builds real tiny shards on this machine, in its own process. The time until the first shard is the start-up.
The time from there to the last is the overhead per shard: handing over, receipts, syncs, and if each task is a process,
its start, imports and tokenizer.
"""

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dataprep_assets.execution.pool import ENGINES, open_pool
from dataprep_assets.execution.processes import ONE_THREAD
from dataprep_assets.stream.token_shard import TokenShard
from dataprep_assets_tests.pipelines.corpus.shards import (
    build_whole_shards,
    shard_work,
    source,
    stream_plan,
    write_lines,
)

SHARDS, WORKERS = 42, 2
_PR_SET_CHILD_SUBREAPER = 36
_ENDING_SECONDS = 20.0


def shards(folder: Path, count: int) -> list[TokenShard]:
    """Return shards of one file with three documents each."""
    found = []
    for number in range(count):
        path = write_lines(folder / f"{number}.jsonl.zst", [f"document {number} {row}" for row in range(3)])
        work = shard_work(folder / "out", stream_plan(), [source(path)])
        found.append(replace(work, artifact=replace(work.artifact, partition=f"train-{number:05d}")))
    return found


def seconds_here(engine: str, count: int) -> tuple[float, float, float]:
    """Return `(seconds to the first shard, seconds from there to the last, CPU-seconds of all processes)`.

    Orphaned processes become children of this one, so that their time is counted.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    with tempfile.TemporaryDirectory(prefix="dataprep-engines-") as folder:
        works = shards(Path(folder), count)
        before, started = _cpu(), time.perf_counter()
        with open_pool(WORKERS, ONE_THREAD, os.environ, engine) as pool:
            done = []
            for outcome in build_whole_shards(works, pool):
                if outcome.error is not None:
                    raise outcome.error
                done.append(time.perf_counter() - started)
    with suppress(ChildProcessError):
        deadline = time.monotonic() + _ENDING_SECONDS
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.1)
    return done[0], done[-1] - done[0], _cpu() - before


def _cpu() -> float:
    every = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(used.ru_utime + used.ru_stime for used in every)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the table of deploy/README.md."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.bench.engines", description=__doc__)
    parser.add_argument("engines", nargs="*", default=ENGINES)
    parser.add_argument("--here", metavar="ENGINE", help="measure one in this process, and print JSON")
    options = parser.parse_args(arguments)
    if options.here:
        print(json.dumps(seconds_here(options.here, SHARDS)))
        return 0
    print("| engine | first shard after s | each further s | CPU-s of all |\n|---|---|---|---|")
    for engine in options.engines:
        command = [sys.executable, "-m", "dataprep_assets_tests.tools.bench.engines", "--here", engine]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        first, others, cpu = json.loads(out)
        print(f"| {engine} | {first:.1f} | {others / (SHARDS - 1):.3f} | {cpu:.1f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
