"""The table of pending builds: aligned, bounded, plain text, and silent if its reader closes early."""

import subprocess
import sys
from pathlib import Path

import pytest

from dataprep_assets.cli.support.rebuild_table import MAX_LISTED, rebuild_lines
from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets.engine.artifact.spec import ReadCost
from dataprep_assets.engine.privacy import OPEN, Privacy
from dataprep_assets.engine.staleness.decide import Action, Decision
from dataprep_assets.engine.staleness.rebuild import LossChange, PlannedBuild, Rebuild, ReplacedPublication
from dataprep_assets.planning.cost import Machine
from dataprep_assets_tests.cli.commands import environment
from dataprep_assets_tests.messages import assert_names

CLOSED = Privacy(closed=True, dataset="ward")


def rebuild(
    *works: PlannedBuild,
    published: tuple[ReplacedPublication, ...] = (),
    due: tuple[Decision, ...] = (),
    losses: tuple[LossChange, ...] = (),
) -> Rebuild:
    machine = Machine(cores=2, bandwidth=1e6)
    return Rebuild(works=works, due=due, losses=losses, published=published, machine=machine, run_seconds=(4.0, 4.0))


def work(
    name: str,
    partition: str | None = None,
    *causes: str,
    provisional: bool = False,
    seconds: tuple[float, float] = (3.0, 3.0),
) -> PlannedBuild:
    stale = Decision(
        action=Action.BUILD,
        name=name,
        kind="input changed",
        reason="its input changed",
        causes=causes or ("missing",),
        partition=partition,
        provisional=provisional,
    )
    reading = ReadCost(source_bytes=1_500_000, density=1.0, tokenized=True) if partition else None
    return PlannedBuild(stale=stale, reading=reading, tokens=1200 if partition else None, seconds=seconds)


def test_each_cause_is_listed_once_with_its_consequences_below() -> None:
    new, rule = "new file a", "rule short changed: words < 50 → words < 20"
    works = [
        work("list", None, new, "removed file b"),
        work("rows", None, rule),
        work("bins", "a-0", new),
        work("bins", "a-1", "removed file b"),
        work("a_longer_name", None, rule, new, provisional=True),
    ]
    head, *lines = rebuild_lines(rebuild(*works), OPEN)
    assert head.split() == ["artifact", "count", "partitions", "source", "tokens", "time"]
    assert lines[:2] == [new, "removed file b"]
    assert lines[2].split() == ["list", "-", "-", "-", "-", "3.0", "s"]
    assert lines[3].split() == ["bins", "2", "a-0...a-1", "3.0", "MB", "2,400", "6.0", "s"]
    assert lines[4] == rule
    assert lines[5].split() == ["rows", "-", "-", "-", "-", "3.0", "s"]
    assert lines[6].split(maxsplit=7) == ["a_longer_name", *"----", "3.0", "s", "if its input changes"]
    assert lines[7] == ""
    assert all(lines.count(cause) == 1 for cause in (new, rule, "removed file b"))
    assert {line.rindex("-") for line in (lines[2], lines[5], lines[6])} == {lines[2].rindex("-")}


def test_a_sensitive_dataset_shows_only_names_kinds_and_rounded_counts() -> None:
    stale = Decision(
        action=Action.BUILD,
        name="bins",
        kind="check failed",
        reason="1 of 3 shards fails, 1 note is gone",
        causes=("1 of 3 shards fails, 1 note is gone", "new file ann.xml"),
        partition="2010-01",
    )
    reading = ReadCost(source_bytes=1_500_000, density=1.0, tokenized=True)
    losses = (LossChange(artifact="rows", reason="short", before=3, after=1234),)
    made = rebuild(PlannedBuild(stale=stale, reading=reading, tokens=1234, seconds=(3.0, 3.0)), losses=losses)
    told = "\n".join(rebuild_lines(made, CLOSED))
    assert told.splitlines()[1:3] == ["check failed", "  bins          1  2010-01          -   1,200     -"]
    assert "rows" in told
    assert not any(found in told for found in ("1 note", "ann", "1.5", "3.0", "1,234", "1234", "MB", " 3 "))


@pytest.mark.parametrize("privacy", [OPEN, CLOSED])
def test_causes_beyond_twenty_are_counted(privacy: Privacy) -> None:
    many = [work(f"asset_{i:02d}", p, f"cause {i:02d}") for i in range(MAX_LISTED + 3) for p in ("p-0", "p-1")]
    lines = list(rebuild_lines(rebuild(*many), privacy))
    if privacy.closed:  # causes are hidden, so all builds are listed under one kind
        assert [line.split()[0] for line in lines[1:4]] == ["input", "asset_00", "asset_01"]
        return
    assert lines[2 * MAX_LISTED - 1] == f"cause {MAX_LISTED - 1}"
    assert lines[2 * MAX_LISTED + 1] == "and 3 more causes, for 6 artifacts (`--json` lists all)"


@pytest.mark.parametrize("count", [MAX_LISTED + 1, MAX_LISTED + 2])
def test_one_or_two_extra_causes_are_listed(count: int) -> None:
    lines = list(rebuild_lines(rebuild(*(work(f"asset_{i:02d}", None, f"cause {i:02d}") for i in range(count))), OPEN))
    assert lines[1 : 2 * count + 1 : 2] == [f"cause {i:02d}" for i in range(count)]
    assert lines[2 * count + 1] == ""


def test_many_changed_files_of_one_cause_are_counted() -> None:
    lines = list(rebuild_lines(rebuild(work("list", None, *(f"new file {i}" for i in range(MAX_LISTED + 5)))), OPEN))
    assert lines[1 : MAX_LISTED + 1] == [f"new file {i}" for i in range(MAX_LISTED)]
    assert lines[MAX_LISTED + 1].startswith("and 5 more changes")
    assert lines[MAX_LISTED + 2].split()[0] == "list"


def test_dropped_documents_before_and_after_are_a_table() -> None:
    losses = (
        LossChange(artifact="selection_train", reason="short", before=10, after=1200),
        LossChange(artifact="selection_train", reason="odd", before=0, after=None),
    )
    told = list(rebuild_lines(rebuild(work("rows"), losses=losses), OPEN))
    start = told.index("") + 1
    assert [line.split(maxsplit=3) for line in told[start + 1 : start + 3]] == [
        ["selection_train", "short", "10", "1,200"],
        ["selection_train", "odd", "0", "not known yet"],
    ]


def test_a_pending_check_is_one_line_unless_a_run_builds_something() -> None:
    due = tuple(
        Decision(action=Action.CHECK, name="ds/bins", kind="not checked", reason="not checked: eye_test", partition=p)
        for p in ("a-0", "a-1")
    )
    line = "ds/bins (2 partitions): not checked: eye_test"
    assert [one for one in rebuild_lines(rebuild(due=due), OPEN) if one] == [line]
    assert line not in list(rebuild_lines(rebuild(work("bins"), due=due), OPEN))


def test_sums_and_locations_are_shown() -> None:
    published = (ReplacedPublication(artifact="ds/published_shards", place="s3://bucket/there"),)
    told = "\n".join(
        rebuild_lines(rebuild(work("bins", "a-0"), work("view", provisional=True), published=published), OPEN)
    )
    assert_names(told, "1 of 2", "input")
    assert_names(told, "7.0 s", "10.0 s", "2 cores")
    assert "replaces the published files in s3://bucket/there (ds/published_shards)" in told
    assert told.isascii()
    assert "\x1b" not in told


def test_timed_steps_give_one_number_and_untimed_steps_a_range() -> None:
    assert list(rebuild_lines(rebuild(work("bins"), work("view")), OPEN))[-1] == "expected: about 10.0 s on 2 cores"
    lines = list(rebuild_lines(rebuild(work("bins"), work("view", seconds=(1.0, 9.0))), OPEN))
    assert ["view", *"-----"] in [line.split() for line in lines]
    assert lines[-1].startswith("expected: 8.0 s to 16.0 s on 2 cores")


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
