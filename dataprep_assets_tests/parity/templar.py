"""templar's manager of shared shards beside ours in its place: the same samples to every rank, turn by turn.

Real process groups (`torch.distributed`, gloo, 2 and 4 ranks); the original's own sampler draws from both datasets. A
record is a sample that a rank draws, with its number, its id and its tokens. A restart at a later shard is held against
a run of the original that was never restarted: its own restart goes on with shard 1 (docs/formats/shard-window.md).
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dataprep_assets.errors import ConfigError
from dataprep_assets_tests.parity.table import Row
from dataprep_assets_tests.parity.templar_rank import LENGTH, Plan
from dataprep_assets_tests.serving.releases import published

SHARDS = (12, 9, 12)
TURNS = 7
"""Twice around the three shards, and one more."""
LATE = 4
GUARD_SECONDS = 900


def compare(folder: Path) -> list[Row]:
    """A row for each number of ranks and each start; `folder` is a clone of templar."""
    if not (folder / "src/tplr/sharded_dataset.py").is_file():
        raise ConfigError(f"--templar: {folder}: no src/tplr/sharded_dataset.py")
    rows = []
    with TemporaryDirectory() as name:
        home = Path(name)
        release = Path(str(published(home, SHARDS, length=LENGTH).store.url).removeprefix("file://"))
        for world_size in (2, 4):
            theirs = _run(home / f"theirs-{world_size}", folder, release, "original", world_size, 0, TURNS)
            ours = _run(home / f"ours-{world_size}", folder, release, "ours", world_size, 0, TURNS)
            late = _run(home / f"late-{world_size}", folder, release, "ours", world_size, LATE, TURNS - LATE)
            rows.append(_row(f"{world_size} ranks, {TURNS} turns of {len(SHARDS)} shards", theirs, ours))
            rows.append(_row(f"{world_size} ranks, started at turn {LATE}", [t[LATE:] for t in theirs], late))
    return rows


def _run(
    home: Path, folder: Path, release: Path, whose: str, world_size: int, start: int, turns: int
) -> list[list[dict[str, Any]]]:
    """Rank → turn → what it read."""
    home.mkdir()
    plan = Plan(
        original=str(folder),
        release=str(release),
        whose=whose,
        world_size=world_size,
        start=start,
        turns=turns,
        shards=len(SHARDS),
        out=str(home),
    ).write(home / "plan.json")
    command = [sys.executable, "-m", "dataprep_assets_tests.parity.templar_rank", str(plan)]
    ranks = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for rank in range(world_size)
    ]
    for rank, process in enumerate(ranks):
        _, said = process.communicate(timeout=GUARD_SECONDS)
        assert process.returncode == 0, f"rank {rank}: {said.decode()[-2000:]}"
    return [json.loads((home / f"rank-{rank}.json").read_text()) for rank in range(world_size)]


def _row(shape: str, theirs: list[list[dict[str, Any]]], ours: list[list[dict[str, Any]]]) -> Row:
    records = equal = 0
    for their_turns, our_turns in zip(theirs, ours, strict=True):
        for their, our in zip(their_turns, our_turns, strict=True):
            records += len(their["read"])
            same_shard = their["whole"] == our["whole"] and len(their["read"]) == len(our["read"])
            equal += sum(a == b for a, b in zip(their["read"], our["read"], strict=True)) if same_shard else 0
    note = "numbers, ids and tokens drawn by the original's MinerSampler; whole shards equal"
    return Row("templar, gloo", shape, records, equal, 0, note)
