"""`python -m dataprep_assets_tests.execution.slurm_run FILE`: a run that makes the pickled shards of FILE on Slurm.

Prints what became of each shard. Its functions are what tasks of arrays do.
"""

import os
import pickle
import sys
import time
from pathlib import Path

from dataprep_assets.execution.pool import open_pool
from dataprep_assets.execution.processes import ONE_THREAD
from dataprep_assets_tests.pipelines.corpus.shards import build_whole_shards


def marked(marks: Path, name: str) -> int:
    """How often a task of this name has begun, this time included."""
    (marks / f"{name}-{os.getpid()}-{time.time_ns()}").touch()
    return len(list(marks.glob(f"{name}-*")))


def oversleep(marks: Path, name: str, seconds: float) -> int:
    """Sleep the first time; then the number of tries."""
    tries = marked(marks, name)
    if tries == 1:
        time.sleep(seconds)
    return tries


def hold(size: int) -> int:
    """Have so many bytes of memory; their number."""
    return len(b"x" * size)


def main(arguments: list[str]) -> int:
    """The command; 1 when a shard failed."""
    shards = pickle.loads(Path(arguments[0]).read_bytes())
    with open_pool(2, ONE_THREAD, os.environ, "slurm") as pool:
        for outcome in build_whole_shards(shards, pool):
            print("failed" if outcome.error else "reused" if outcome.reused else "built", outcome.partition, flush=True)
            if outcome.error:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
