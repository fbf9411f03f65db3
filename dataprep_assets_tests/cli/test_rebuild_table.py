"""The table of what is to be built: aligned, bounded, plain, and closed early without a word."""

import subprocess
import sys
from pathlib import Path

import pytest

from dataprep_assets.cli.support.rebuild_table import MOST_ROWS, rebuild_lines
from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets.engine.artifact.spec import ReadCost
from dataprep_assets.engine.privacy import OPEN, Privacy
from dataprep_assets.engine.staleness.decide import Action, Decision
from dataprep_assets.engine.staleness.rebuild import Published, Rebuild, ToBuild
from dataprep_assets.planning.cost import Machine, Rates
from dataprep_assets_tests.cli.commands import environment


def rebuild(*due: ToBuild, published: tuple[Published, ...] = ()) -> Rebuild:
    machine = Machine(cores=2, bandwidth=1e6)
    return Rebuild(works=due, published=published, machine=machine, rates=Rates(), measured=0)


def due(name: str, partition: str | None = None, reason: str = "absent", provisional: bool = False) -> ToBuild:
    stale = Decision(
        action=Action.BUILD, name=name, kind="absent", reason=reason, partition=partition, provisional=provisional
    )
    reading = ReadCost(source_bytes=1_500_000, density=1.0, tokenized=True) if partition else None
    return ToBuild(stale=stale, reading=reading, tokens=1200 if partition else None, seconds=3.0 if partition else None)


def test_columns_are_aligned_and_partitions_of_one_asset_are_one_row() -> None:
    lines = list(rebuild_lines(rebuild(due("bins", "a-0", "x"), due("bins", "a-1", "y"), due("a_longer_name")), OPEN))
    assert lines[0].split() == ["artifact", "count", "partitions", "source", "tokens", "time", "why"]
    assert lines[1].split(maxsplit=8) == ["bins", "2", "a-0...a-1", "3.0", "MB", "2,400", "6.0", "s", lines[1][-24:]]
    assert lines[1].endswith("  x (and 1 more like this)")
    assert lines[2].split() == ["a_longer_name", "-", "-", "-", "-", "-", "absent"]
    start = lines[0].index("why")
    assert lines[1][start:].startswith("x (")
    assert lines[2][start:] == "absent"


def test_of_a_sensitive_dataset_names_kinds_and_rounded_tokens_leave() -> None:
    stale = Decision(
        action=Action.BUILD,
        name="bins",
        kind="check failed",
        reason="1 of 3 shards fails, 1 note is gone",
        partition="2010-01",
    )
    reading = ReadCost(source_bytes=1_500_000, density=1.0, tokenized=True)
    made = rebuild(ToBuild(stale=stale, reading=reading, tokens=1234, seconds=3.0))
    told = "\n".join(rebuild_lines(made, Privacy(closed=True, dataset="ward")))
    assert told.splitlines()[1].split() == ["bins", "1", "2010-01", "-", "1,200", "-", "check", "failed"]
    assert not any(found in told for found in ("1 note", "1.5", "3.0", "1,234", "MB"))


def test_beyond_twenty_rows_the_rest_is_a_number() -> None:
    many = [due(f"asset_{i:02d}", partition) for i in range(MOST_ROWS + 3) for partition in ("p-0", "p-1")]
    lines = list(rebuild_lines(rebuild(*many), OPEN))
    assert lines[MOST_ROWS].startswith(f"asset_{MOST_ROWS - 1}")
    assert lines[MOST_ROWS + 1] == "and 3 more rows, of 6 artifacts (`--json` lists all)"


@pytest.mark.parametrize("count", [MOST_ROWS + 1, MOST_ROWS + 2])
def test_one_or_two_rows_more_are_shown(count: int) -> None:
    lines = list(rebuild_lines(rebuild(*(due(f"asset_{i:02d}") for i in range(count))), OPEN))
    assert [line.split()[0] for line in lines[1 : count + 1]] == [f"asset_{i:02d}" for i in range(count)]
    assert lines[count + 1] == ""


def test_sums_and_places_are_told() -> None:
    published = (Published(artifact="ds/published_shards", place="s3://bucket/there"),)
    told = "\n".join(
        rebuild_lines(rebuild(due("bins", "a-0"), due("view", provisional=True), published=published), OPEN)
    )
    assert "1 of 2 are built only if a rebuilt input differs" in told
    assert "tokenizing 3.0 s" in told
    assert "rates from the benchmark" in told
    assert "replaces the published s3://bucket/there (ds/published_shards)" in told
    assert told.isascii()
    assert "\x1b" not in told


def test_a_reader_that_closes_early_causes_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dataprep_assets.cli", "status", "sample_tasks"]
    running = subprocess.Popen(
        command, env=environment(tmp_path) | {"PYTHONPATH": str(PROJECT_ROOT)}, cwd=PROJECT_ROOT, stdout=-1, stderr=-1
    )
    assert running.stdout is not None
    running.stdout.close()
    assert running.stderr is not None
    said = running.stderr.read().decode()
    assert running.wait(60) == 141
    assert said == ""
