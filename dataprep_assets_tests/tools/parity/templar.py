"""Compare templar's manager of shared shards with ours: both give the same samples to every rank in every turn.

The test uses real process groups (`torch.distributed`, gloo, 2 and 4 ranks). The original's sampler draws from both
datasets, in the lines of the original miner, and its `Comms` fetches its shards from an S3 server. A record is a sample
that a rank draws, with its number, its id and its tokens. A restart at every step of three shards is compared with a
run of the original without a restart, because a restart of the original continues with shard 1
(docs/formats/shard-window.md).
"""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dataprep_assets.errors import ConfigError
from dataprep_assets_tests.fakes.moto_server import run_moto_server
from dataprep_assets_tests.serving.releases import published
from dataprep_assets_tests.tools.parity.pinned import pinned
from dataprep_assets_tests.tools.parity.table import Row
from dataprep_assets_tests.tools.parity.templar_rank import LENGTH, Plan

SHARDS = (12, 9, 12)
PER_SHARD = 3
STEPS = 12
"""The number of outer steps: three for each shard, and the first shard once more."""
GUARD_SECONDS = 900


def compare(folder: Path) -> list[Row]:
    """Return a row for each number of ranks and each kind of start; `folder` is a clone of templar."""
    if not (folder / "src/tplr/sharded_dataset.py").is_file():
        raise ConfigError(f"--templar: {folder}: no src/tplr/sharded_dataset.py")
    rows = []
    with TemporaryDirectory() as name, run_moto_server() as endpoint:
        home = Path(name)
        release = Path(str(published(home, SHARDS, length=LENGTH).store.url).removeprefix("file://"))
        _upload(release, endpoint)
        run = partial(_run, folder, release, endpoint)
        for world_size in (2, 4):
            theirs = [steps["0"] for steps in run(home / f"theirs-{world_size}", "original", world_size, [0])]
            starts = list(range(PER_SHARD * len(SHARDS) + 1))
            ours = run(home / f"ours-{world_size}", "ours", world_size, starts)
            for kind, chosen in _kinds(starts).items():
                compared = [_compared(theirs, [steps[str(start)] for steps in ours], start) for start in chosen]
                shape = f"{world_size} ranks, {STEPS} steps, {kind}"
                records, equal = (sum(numbers) for numbers in zip(*compared, strict=True))
                rows.append(Row("templar, gloo", shape, records, equal, 0, _NOTE))
    return rows


_NOTE = "numbers, ids and tokens drawn by the original's MinerSampler in miner.py's own lines; whole shards equal"
_BUCKET, _BINS = "dataset", "remote/tokenized"
_SECRETS = {
    f"R2_{bucket}_{key}": _BUCKET
    for bucket in ("GRADIENTS", "AGGREGATOR", "DATASET")
    for key in (
        "ACCOUNT_ID",
        "BUCKET_NAME",
        "READ_ACCESS_KEY_ID",
        "READ_SECRET_ACCESS_KEY",
        "WRITE_ACCESS_KEY_ID",
        "WRITE_SECRET_ACCESS_KEY",
    )
}
"""The variables that the upstream `config.py` requires."""


def _upload(release: Path, endpoint: str) -> None:
    """Upload the shards under the keys that upstream miners request: their paths below the working folder."""
    import boto3

    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name="enam", aws_access_key_id=_BUCKET, aws_secret_access_key=_BUCKET
    )
    client.create_bucket(Bucket=_BUCKET, CreateBucketConfiguration={"LocationConstraint": "enam"})
    for path in (*release.glob("*.npy"), *release.glob("*.bin")):
        client.upload_file(str(path), _BUCKET, f"{_BINS}/{path.name}")


def _kinds(starts: list[int]) -> dict[str, list[int]]:
    turns = [start for start in starts if start and start % PER_SHARD == 0]
    within = [start for start in starts if start % PER_SHARD]
    return {"from the first": [0], "restarted where shards change": turns, "restarted at every other step": within}


def _run(
    folder: Path, release: Path, endpoint: str, home: Path, whose: str, world_size: int, starts: list[int]
) -> list[dict[str, list[dict[str, Any]]]]:
    """Return rank → start → step → its reads."""
    home.mkdir()
    plan = Plan(
        original=str(folder),
        release=str(release),
        endpoint=endpoint,
        whose=whose,
        world_size=world_size,
        starts=starts,
        per_shard=PER_SHARD,
        steps=STEPS,
        shards=len(SHARDS),
        out=str(home),
    ).write(home / "plan.json")
    command = [sys.executable, "-m", "dataprep_assets_tests.tools.parity.templar_rank", str(plan)]
    found = [str(pinned(folder, "aioboto3")), str(Path(__file__).parents[3])]
    environment = {**os.environ, **_SECRETS, "DATASET_BINS_PATH": _BINS, "PYTHONPATH": os.pathsep.join(found)}
    ranks = [
        # Run the ranks in this folder, because bucket keys and disk paths are relative to the working folder.
        subprocess.Popen(
            [*command, str(rank)], cwd=home, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        for rank in range(world_size)
    ]
    for rank, process in enumerate(ranks):
        _, said = process.communicate(timeout=GUARD_SECONDS)
        assert process.returncode == 0, f"rank {rank}: {said.decode()[-2000:]}"
    return [json.loads((home / f"rank-{rank}.json").read_text()) for rank in range(world_size)]


def _compared(theirs: list[list[dict[str, Any]]], ours: list[list[dict[str, Any]]], start: int) -> tuple[int, int]:
    """Return the records of our run from `start` on, and how many of them equal those of upstream's
    uninterrupted run.
    """
    records = equal = 0
    for their_steps, our_steps in zip(theirs, ours, strict=True):
        for their, our in zip(their_steps[start:], our_steps, strict=True):
            records += len(their["read"])
            same_shard = their["whole"] == our["whole"] and len(their["read"]) == len(our["read"])
            equal += sum(a == b for a, b in zip(their["read"], our["read"], strict=True)) if same_shard else 0
    return records, equal
