"""Ranks as processes that share one cache, with a real S3 server and kills: all see every sample, and nothing is left
over.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets.errors import ConfigError
from dataprep_assets.serving import ShardWindow, WindowEvent
from dataprep_assets.serving.window.release import Release
from dataprep_assets.stores.retry import RetryPolicy
from dataprep_assets_tests.fakes.buckets import new_bucket
from dataprep_assets_tests.fakes.fault_proxy import Fault, FaultProxy
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.serving.rank import Plan, place_of
from dataprep_assets_tests.serving.releases import data_files, debris, leases, make_release, publish, tokens_of

pytestmark = pytest.mark.slow

LENGTH = 256
SAMPLES = 1024
"""1 MiB per shard: 17 ranges."""
GUARD_SECONDS = 120


@pytest.fixture
def bucket(moto: str, tmp_path: Path) -> tuple[str, Release]:
    """Return a bucket with a release of three shards."""
    name = new_bucket(moto)
    release = make_release(tmp_path / "built", (SAMPLES, SAMPLES - 3, SAMPLES), length=LENGTH)
    publish(release, tmp_path / "built", place_of(moto, name))
    return name, release


class Ranks:
    """Processes by rank number, restarted when they are killed."""

    def __init__(self, home: Path, plan: dict[str, Any]) -> None:
        self.home, self.plan = home, plan
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.dies: dict[int, tuple[str, ...]] = {}

    def log(self, rank: int) -> Path:
        return self.home / f"log-{rank}"

    def start(self, rank: int, *die: str) -> None:
        self.dies.setdefault(rank, die)
        path = Plan(**self.plan, log=str(self.log(rank)), die=self.dies[rank]).write(self.home / f"plan-{rank}.json")
        with open(self.home / f"stderr-{rank}", "ab") as errors:
            self.processes[rank] = subprocess.Popen(
                [sys.executable, "-m", "dataprep_assets_tests.serving.rank", str(path)], stderr=errors
            )

    def run(self) -> None:
        """Run until all ranks have ended, and restart killed ones."""
        deadline = time.monotonic() + GUARD_SECONDS
        try:
            while self.processes:
                assert time.monotonic() < deadline, f"ranks {sorted(self.processes)} hang"
                for rank, process in list(self.processes.items()):
                    code = process.poll()
                    if code == -signal.SIGKILL:
                        self.start(rank)
                    elif code is not None:
                        assert code == 0, (self.home / f"stderr-{rank}").read_text()
                        del self.processes[rank]
                time.sleep(0.02)
        finally:
            for process in self.processes.values():
                process.kill()
                process.wait()

    def deaths(self) -> set[str]:
        return {line for path in self.home.glob("log-*.deaths") for line in path.read_text().split()}

    def lines(self, rank: int) -> list[list[Any]]:
        return [json.loads(line) for line in self.log(rank).read_text().splitlines()]


def expected(steps: int, steps_per_shard: int) -> list[list[Any]]:
    """Return step, shard and ids that a rank must have seen, computed from the tokens."""
    from dataprep_assets.formats.sample_ids import compute_sample_ids

    found = []
    for step in range(steps):
        index = step // steps_per_shard % 3
        samples = SAMPLES - 3 if index == 1 else SAMPLES
        ids = compute_sample_ids(tokens_of(index, samples, length=LENGTH), LENGTH)
        part = np.array_split(ids, steps_per_shard)[step % steps_per_shard]
        found.append([step, index, [int(i) for i in part]])
    return found


@pytest.mark.parametrize("keep", [2, "all"])
def test_four_ranks_over_three_epochs_with_kills_see_every_sample_in_order(
    moto: str, bucket: tuple[str, Release], tmp_path: Path, keep: Any
) -> None:
    """Upstream, ranks wait in a barrier for the download, and a killed rank loses its position.

    See docs/formats/shard-window.md#other-faults.
    """
    steps = 3 * 3 * 2
    cache = tmp_path / "cache"
    ranks = Ranks(
        tmp_path,
        {"url": moto, "bucket": bucket[0], "cache": str(cache), "steps": steps, "steps_per_shard": 2, "keep": keep},
    )
    for rank in range(4):
        ranks.start(rank, "range:9", "range:30", "swap:6" if rank % 2 else "step:9")
    ranks.run()
    assert ranks.deaths() >= {"range:9", "swap:6", "step:9"}
    for rank in range(4):
        assert ranks.lines(rank) == expected(steps, 2), f"rank {rank}"
    if keep == "all":
        assert debris(cache) == []
        assert len(data_files(cache)) == 6
    else:
        assert debris(cache) == []
        assert len({name.split(".")[0] for name in data_files(cache) if name.startswith("train")}) <= 2


def test_when_the_downloader_is_killed_the_next_rank_takes_over(
    moto: str, bucket: tuple[str, Release], tmp_path: Path
) -> None:
    """See docs/formats/shard-window.md#other-faults: upstream leaves a file with a new UUID after each kill."""
    plan = {
        "url": moto,
        "bucket": bucket[0],
        "cache": str(tmp_path / "cache"),
        "steps": 1,
        "steps_per_shard": 1,
        "keep": "all",
    }
    ranks = Ranks(tmp_path, plan)
    ranks.start(0, "range:12")
    ranks.processes[0].wait(GUARD_SECONDS)
    assert ranks.processes.pop(0).returncode == -signal.SIGKILL
    assert "train_000000.npy.part" in debris(tmp_path / "cache")
    ranks.start(1)
    ranks.run()
    assert ranks.lines(1) == expected(1, 1)
    assert debris(tmp_path / "cache") == []


def _ranges(proxy: FaultProxy, name: str) -> Counter[str]:
    found = [
        {key.lower(): value for key, value in seen.headers.items()}.get("range", "")
        for seen in proxy.seen
        if seen.operation == "get" and name in seen.path
    ]
    return Counter(found)


def test_one_process_downloads_for_all(moto: str, bucket: tuple[str, Release], tmp_path: Path) -> None:
    with FaultProxy(moto) as proxy:
        plan = {
            "url": proxy.url,
            "bucket": bucket[0],
            "cache": str(tmp_path / "cache"),
            "steps": 3,
            "steps_per_shard": 1,
            "keep": "all",
        }
        ranks = Ranks(tmp_path, plan)
        for rank in range(4):
            ranks.start(rank)
        ranks.run()
        fetched = Counter(
            key for index in range(3) for key, n in _ranges(proxy, f"train_{index:06d}.npy").items() for _ in range(n)
        )
    assert max(fetched.values()) <= 3, "a range of a shard was fetched by more than one process"
    for rank in range(4):
        assert ranks.lines(rank) == expected(3, 1)


def test_a_failing_server_during_a_prefetch_is_survived(moto: str, bucket: tuple[str, Release], tmp_path: Path) -> None:
    """Upstream, the first chunk without attempts left fails the file, and nothing is retried.

    See docs/formats/shard-window.md#other-faults.
    """
    with FaultProxy(moto) as proxy:
        place = place_of(proxy.url, bucket[0])
        events: list[WindowEvent] = []
        with ShardWindow(
            place,
            tmp_path / "cache",
            1,
            retry=RetryPolicy(attempts=9, base_seconds=0.01, max_seconds=0.1),
            on_event=events.append,
        ) as window:
            proxy.faults += [Fault("503", "get", times=6), Fault("reset", "get", times=2), Fault("truncate", "get")]
            assert window.swap(0).index == 0
            proxy.faults += [Fault("flip", "get"), Fault("reset", "get", times=8)]
            shard = window.swap(1)
            assert np.array_equal(shard.tokens, tokens_of(1, SAMPLES - 3, length=LENGTH))
            assert any(event.error for event in events)


def test_a_refused_request_is_reported_with_its_cause(moto: str, bucket: tuple[str, Release], tmp_path: Path) -> None:
    """Upstream, a client error other than 404 becomes a generic error and `None`.

    See docs/formats/shard-window.md#other-faults.
    """
    with FaultProxy(moto) as proxy:
        events: list[WindowEvent] = []
        with ShardWindow(
            place_of(proxy.url, bucket[0]),
            tmp_path / "cache",
            1,
            retry=RetryPolicy(attempts=1),
            on_event=events.append,
        ) as window:
            proxy.faults.append(Fault("403", "get", times=1000))
            with raises(ConfigError, 403):
                window.swap(0)
            assert window.status().gave_up == (0,)
        assert events[-1].kind == "gave_up"


def test_nothing_is_written_outside_the_cache(
    moto: str, bucket: tuple[str, Release], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upstream downloads to the system's temporary folder, and its move across file systems can be interrupted.

    See docs/formats/shard-window.md#other-faults.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not there"))
    monkeypatch.chdir(tmp_path / "built")
    before = data_files(tmp_path)
    with ShardWindow(place_of(moto, bucket[0]), tmp_path / "cache", 1) as window:
        window.swap(0)
        shard = window.swap(1)
    assert shard.token_path.parent == tmp_path / "cache"
    assert [name for name in data_files(tmp_path) if not name.startswith("cache/")] == before


def test_a_shard_held_by_a_dead_rank_is_released_and_its_file_removed(
    moto: str, bucket: tuple[str, Release], tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    plan = {
        "url": moto,
        "bucket": bucket[0],
        "cache": str(cache),
        "steps": 2,
        "steps_per_shard": 1,
        "keep": 2,
    }
    ranks = Ranks(tmp_path, plan)
    ranks.start(0, "swap:0")
    ranks.processes[0].wait(GUARD_SECONDS)
    assert ranks.processes.pop(0).returncode == -signal.SIGKILL
    assert len(os.listdir(cache / ".window" / "train" / "ranks")) == 1
    with ShardWindow(place_of(moto, bucket[0]), cache, 1, keep=2) as window:
        assert window.swap(1).index == 1
        assert list(leases(window).values()) == [[1, 2]]
    assert debris(cache) == [] or all("train_000002" in name for name in debris(cache))
