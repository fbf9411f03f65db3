"""What planning a million files costs: entries, shard plan, digests and files, of names and sizes that are given.

`python -m dataprep_assets_tests.tools.bench.planned_files FILES` measures it in its own process and prints JSON:
CPU-seconds of each step, the most memory that it had, the listing included, and a digest of all that was written.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from dataprep_assets.planning.manifest import (
    ShardSizing,
    SourceFile,
    build_manifest,
    count_shards,
    digest_listing,
    plan_shards,
    write_manifest,
    write_plan,
)
from dataprep_assets.stores.files import sha256_file

CPU_TARGET, MEGABYTES_TARGET = 20.0, 1000.0
_SPLITS = {"train": ["train/**"], "val": ["validation/**"]}


@dataclass(frozen=True, kw_only=True)
class Planned:
    """CPU-seconds by step, peak MB, and the SHA-256 (hex) of the listing's digest and of the written files."""

    files: int
    steps: dict[str, float]
    megabytes: float
    digest: str

    @property
    def cpu(self) -> float:
        """The CPU-seconds of all steps."""
        return sum(self.steps.values())


def listed(files: int) -> list[SourceFile]:
    """Return a hub's listing in SlimPajama's layout, unordered: each file with a size and a SHA-256."""
    found = []
    for number in range(files):
        split, name = ("validation", "holdout") if number % 50 == 0 else ("train", "train")
        relpath = f"{split}/chunk{number % 1000 + 1}/example_{name}_{number}.jsonl.zst"
        digest = hashlib.sha256(relpath.encode()).hexdigest()
        found.append(SourceFile(relpath, 15_000_000 + number * 7919 % 200_000, digest))
    return found


def planned_here(files: int) -> Planned:
    """Plan the files in this process, into a temporary folder."""
    listing, steps = listed(files), dict[str, float]()

    @contextmanager
    def step(name: str) -> Iterator[None]:
        before = time.process_time()
        yield
        steps[name] = round(time.process_time() - before, 2)

    with tempfile.TemporaryDirectory(prefix="dataprep-planned-") as folder:
        with step("entries"):
            entries = build_manifest(
                listing, include=["**/*.jsonl.zst"], splits=_SPLITS, commit="0" * 40, url_prefix="hf://datasets/a/b/"
            )
        with step("plan"):
            entries, plan = plan_shards(entries, ShardSizing())
        with step("digest"):
            digest = hashlib.sha256(digest_listing(entries).encode())
        with step("files"):
            write_manifest(Path(folder), entries, count_shards(plan))
            write_plan(Path(folder), plan)
        for path in sorted(Path(folder).iterdir()):
            digest.update(sha256_file(path).encode())
    # Do not use getrusage's maximum, which a process inherits from its parent.
    peak = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024
    return Planned(files=files, steps=steps, megabytes=round(peak), digest=digest.hexdigest())


def planned(files: int) -> Planned:
    """Plan the files in a separate process, whose memory is that of only the planning."""
    command = [sys.executable, "-m", "dataprep_assets_tests.tools.bench.planned_files", str(files)]
    return Planned(**json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


if __name__ == "__main__":
    print(json.dumps(asdict(planned_here(int(sys.argv[1])))))
