"""A rank as a process that trains by reading every sample of its schedule, logs them, and dies as planned.

`python -m dataprep_assets_tests.serving.rank PLAN.json`; the plan is a `Plan` as JSON.
"""

import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.serving import Shard, ShardWindow
from dataprep_assets.serving.window.release import ReleaseLocation
from dataprep_assets.serving.window.shard_window import ProgressBar
from dataprep_assets.stores.retry import RetryPolicy
from dataprep_assets_tests.fakes.buckets import new_store

RANGE_BYTES = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The actions of a rank. `die` lists deaths, each of which happens once: `range:N` (at the Nth block it downloads),
    and `swap:N` and `step:N` (before and after it reads the samples of that step).
    """

    url: str
    bucket: str
    cache: str
    log: str
    steps: int
    steps_per_shard: int
    keep: Any
    die: tuple[str, ...] = ()

    @property
    def deaths(self) -> Path:
        """The file to which a rank writes its causes of death."""
        return Path(f"{self.log}.deaths")

    def write(self, path: Path) -> Path:
        """Write the plan to a file for the process."""
        path.write_text(json.dumps(asdict(self)))
        return path


def place_of(url: str, bucket: str) -> ReleaseLocation:
    """Return the release on the test server, with small ranges so that a kill can happen in the middle."""
    retry = RetryPolicy(attempts=3, base_seconds=0.01, max_seconds=0.05)
    return ReleaseLocation(new_store(url, bucket, range_bytes=RANGE_BYTES, workers=2, retry=retry), "remote/tokenized/")


def seen(shard: Shard, step: int, steps_per_shard: int) -> list[int]:
    """Return the ids of the samples of one step, computed from the tokens that were read."""
    from dataprep_assets.formats.sample_ids import compute_sample_ids

    number = step % steps_per_shard
    rows = np.array_split(np.arange(len(shard)), steps_per_shard)[number]
    return [int(i) for i in compute_sample_ids(shard.batch(rows).reshape(-1), shard.sequence_length)]


def _die(plan: Plan, what: str) -> None:
    died = plan.deaths.read_text().split() if plan.deaths.exists() else []
    if what in plan.die and what not in died:
        with open(plan.deaths, "a") as file:
            file.write(f"{what}\n")
        os.kill(os.getpid(), signal.SIGKILL)


def main(path: str) -> None:
    """Continue after the last logged step."""
    plan = Plan(**json.loads(Path(path).read_text()))
    blocks = 0
    add = ProgressBar.add

    def counted(bar: ProgressBar, count: int) -> None:
        nonlocal blocks
        blocks += 1
        _die(plan, f"range:{blocks}")
        add(bar, count)

    ProgressBar.add = counted  # type: ignore[method-assign]
    log = Path(plan.log)
    done = len(log.read_text().splitlines()) if log.exists() else 0
    with ShardWindow(
        place_of(plan.url, plan.bucket),
        plan.cache,
        plan.steps_per_shard,
        keep=plan.keep,
        retry=RetryPolicy(attempts=4, base_seconds=0.05, max_seconds=0.5),
        room_seconds=60,
    ) as window:
        for step in range(done, plan.steps):
            shard = window.swap(step)
            _die(plan, f"swap:{step}")
            line = json.dumps([step, shard.index, seen(shard, step, plan.steps_per_shard)])
            with open(log, "a") as file:
                file.write(line + "\n")
            _die(plan, f"step:{step}")
            del shard


if __name__ == "__main__":
    main(sys.argv[1])
