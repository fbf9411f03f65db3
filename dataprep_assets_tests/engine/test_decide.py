"""The documented table of `staleness.decide`: one row per case, and both orders of every two cases."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.staleness import decide as module
from dataprep_assets.engine.staleness.decide import (
    Action,
    CheckFacts,
    Decision,
    Evaluation,
    EventFacts,
    FileFacts,
    PartitionFacts,
    decide_action,
)
from dataprep_assets.integrity.artifacts import Artifact
from dataprep_assets.integrity.receipt import Ledger, Receipt

RECIPE = Recipe(artifact=Artifact(dataset="d", name="a", partition="p"), key="k", settings={"n": 1})
RECEIPT = Receipt(
    dataset="d", artifact="a", partition="p", key="k", inputs={}, files=(), measured={}, recipe=RECIPE.to_json()
)
FILES = FileFacts(receipt=RECEIPT, recipe=RECIPE)
UNKNOWN = replace(FILES, recipe=None)
PASSED = CheckFacts(passed=True, at=10.0)
FAILED = CheckFacts(passed=False, blocks=True, sentence="at row 3", at=10.0)
REBUILT = replace(FAILED, rebuilt=True)
WARNED = CheckFacts(passed=False, at=10.0)
OTHER_LEDGER = replace(RECIPE, ledger=Ledger(rows_in=1, documents=1))
GOOD, BAD, WARNING = (Evaluation(passed=p, blocks=b) for p, b in ((True, True), (False, True), (False, False)))
ACCEPTED = Evaluation(passed=True, blocks=False, accepted="why")
BUILD, RECORD, CHECK, KEEP = Action.BUILD, Action.RECORD, Action.CHECK, Action.KEEP

Row = tuple[PartitionFacts, Action, str, str, bool]
"""Facts → action, kind, reason, and whether the content is expected to stay the same."""


def with_checks(*checks: CheckFacts | None, **facts: object) -> PartitionFacts:
    return PartitionFacts(files=FILES, checks=dict(zip("xyz", checks, strict=False)), **facts)  # type: ignore[arg-type]


def with_events(**events: object) -> PartitionFacts:
    return PartitionFacts(files=FILES, events=EventFacts(**events))  # type: ignore[arg-type]


def with_files(files: FileFacts, **facts: object) -> PartitionFacts:
    return PartitionFacts(files=files, **facts)  # type: ignore[arg-type]


CASES: dict[str, Row] = {
    "not planned": (PartitionFacts(not_planned="no plan"), BUILD, "missing", "not planned yet: no plan", False),
    "receipt unreadable": (with_files(FileFacts(unreadable="no JSON")), BUILD, "damaged", "damaged: no JSON", False),
    "missing": (with_files(FileFacts()), BUILD, "missing", "missing", False),
    "missing below a stale input": (with_files(FileFacts(), stale_input="d/b"), BUILD, "missing", "missing", False),
    "another setting": (
        with_files(replace(FILES, recipe=replace(RECIPE, key="l", settings={"n": 2}))),
        *(BUILD, "settings changed", "n was 1, now 2", False),
    ),
    "another version": (
        with_files(replace(FILES, recipe=replace(RECIPE, key="l", version=2))),
        *(BUILD, "older version", "built by version 1 of this step; the current version is 2", False),
    ),
    "another input": (
        with_files(replace(FILES, recipe=replace(RECIPE, key="l", upstream={"b": "1"}))),
        *(BUILD, "input changed", "its input changed: b", False),
    ),
    "another key that nothing explains": (
        with_files(replace(FILES, recipe=replace(RECIPE, key="l"))),
        *(BUILD, "recipe changed", "built from different inputs or settings", False),
    ),
    "another ledger": (
        with_files(replace(FILES, recipe=OTHER_LEDGER)),
        *(BUILD, "input changed", "the ledger of its input changed: ", False),
    ),
    "damaged": (
        with_files(replace(FILES, defects=["f: missing", "g: missing"])),
        *(BUILD, "damaged", "damaged: f: missing (and 1 more)", True),
    ),
    "damaged, and its recipe is not known": (
        with_files(replace(UNKNOWN, defects=["f: missing"]), stale_input="d/b"),
        *(BUILD, "damaged", "damaged: f: missing", False),
    ),
    "a stale input": (
        with_files(UNKNOWN, stale_input="d/b"),
        *(BUILD, "input changed", "its input d/b is out of date", False),
    ),
    "a missing input": (
        with_files(UNKNOWN, stale_input="d/b", missing_input=True),
        *(BUILD, "input changed", "its input d/b is missing", False),
    ),
    "a stale input that is new": (
        with_files(UNKNOWN, stale_input="d/b", gains_input=True),
        *(BUILD, "input changed", "its input d/b is out of date", False),
    ),
    "a stale input of what has no files": (
        PartitionFacts(stale_input="d/b"),
        *(BUILD, "input changed", "its input d/b is out of date", False),
    ),
    "recipe refused": (
        with_files(replace(UNKNOWN, refused="no such bucket")),
        *(BUILD, "input unreadable", "no such bucket", False),
    ),
    "check failed": (
        with_checks(PASSED, FAILED),
        *(BUILD, "check failed", "its blocking check y failed: at row 3", True),
    ),
    "checks failed, one of them on this build": (
        with_checks(REBUILT, FAILED),
        *(BUILD, "check failed", "its checks x, y failed: at row 3", True),
    ),
    "check failed, and Dagster has nothing of it": (
        replace(with_checks(FAILED), events=EventFacts(materialized=False)),
        *(BUILD, "check failed", "its blocking check x failed: at row 3", True),
    ),
    "not materialized": (
        with_events(materialized=False),
        *(RECORD, "not recorded", "no materialization is recorded in Dagster", False),
    ),
    "partitions not registered": (
        with_events(registered=False),
        *(RECORD, "not recorded", "no partition is recorded in Dagster", False),
    ),
    "built again as it was": (
        with_checks(REBUILT, None),
        *(CHECK, "check failed", "its blocking check x failed again after a rebuild: at row 3", True),
    ),
    "not checked": (with_checks(PASSED, None), CHECK, "not checked", "not checked: y", False),
    "checked too long ago": (with_checks(PASSED, since=11.0), CHECK, "not checked", "not checked: x", False),
    "a check without an evaluation": (
        with_events(evaluations={"x": GOOD, "y": None}),
        *(CHECK, "not evaluated", "Dagster has no current results of: y", False),
    ),
    "a blocking check whose evaluation failed": (
        with_events(evaluations={"x": BAD}),
        *(CHECK, "not evaluated", "Dagster has no current results of: x", False),
    ),
    "a warning that is accepted now": (
        with_events(evaluations={"x": WARNING}, accept={"x": "why"}),
        *(CHECK, "not evaluated", "Dagster has no current results of: x", False),
    ),
    "a warning that is accepted no more": (
        with_events(evaluations={"x": ACCEPTED}),
        *(CHECK, "not evaluated", "Dagster has no current results of: x", False),
    ),
    "up to date": (with_checks(PASSED, WARNED), KEEP, "", "", False),
    "of a size that nobody verified, below an input that is only damaged": (
        with_files(FILES, stale_input="d/b"),
        *(KEEP, "", "", False),
    ),
    "recorded": (
        with_events(evaluations={"x": GOOD, "y": WARNING, "z": ACCEPTED}, accept={"z": "why"}),
        *(KEEP, "", "", False),
    ),
    "without files and checks": (PartitionFacts(), KEEP, "", "", False),
}


@pytest.mark.parametrize("name", CASES)
def test_each_case_is_decided_according_to_the_table(name: str) -> None:
    facts, action, kind, reason, same_content = CASES[name]
    found = decide_action(facts)
    assert (found.action, found.kind, found.same_content) == (action, kind, same_content)
    assert found.reason.startswith(reason)
    assert bool(found.reason) == (action is not KEEP)
    assert bool(found.causes) == found.is_stale
    assert found.is_stale == (action is BUILD or kind == "check failed")
    assert found.provisional == (name in ("a stale input", "a missing input"))


UPSTREAM = ("new file a.jsonl",)
CHANGED = replace(RECIPE, key="l", settings={"n": 2}, upstream={"b/p": "1"})
CAUSES: dict[str, tuple[PartitionFacts, tuple[str, ...]]] = {
    "its own setting before its input's causes": (
        with_files(replace(FILES, recipe=CHANGED), inputs={"b": UPSTREAM}),
        ("n changed: 1 → 2",),
    ),
    "an input that changed": (
        with_files(replace(FILES, recipe=replace(CHANGED, settings={"n": 1})), inputs={"b": UPSTREAM, "c": ("other",)}),
        UPSTREAM,
    ),
    "a setting that says what an input contains": (
        with_files(replace(FILES, recipe=replace(RECIPE, key="l", settings={"n": 2})), inputs={"n": UPSTREAM}),
        UPSTREAM,
    ),
    "files that changed": (
        with_files(replace(FILES, recipe=replace(RECIPE, key="l", sources={"s": "1"}, source_changes=UPSTREAM))),
        UPSTREAM,
    ),
    "missing": (with_files(FileFacts()), ("missing",)),
    "missing below a stale input": (
        with_files(FileFacts(), stale_input="d/b", input_causes=UPSTREAM),
        UPSTREAM,
    ),
    "not planned below a stale input": (PartitionFacts(not_planned="no plan", input_causes=UPSTREAM), UPSTREAM),
    "a stale input": (with_files(UNKNOWN, stale_input="d/b", input_causes=UPSTREAM), UPSTREAM),
    "a key that nothing explains": (
        with_files(replace(FILES, recipe=replace(RECIPE, key="l"))),
        ("built from different inputs or settings",),
    ),
    "its own damage": (
        with_files(replace(FILES, defects=["f: missing"]), stale_input="d/b", input_causes=UPSTREAM),
        ("damaged: f: missing",),
    ),
}


@pytest.mark.parametrize("name", CAUSES)
def test_the_causes_are_own_changes_or_else_those_of_the_inputs(name: str) -> None:
    facts, causes = CAUSES[name]
    assert decide_action(facts).causes == causes


def test_the_table_of_the_module_has_the_actions_and_kinds_of_the_cases() -> None:
    table = re.findall(r"^\| [^|]+\| (BUILD|RECORD|CHECK|KEEP) +\| ([a-z ]*?) +\|", str(module.__doc__), re.MULTILINE)
    of_changes = {"settings changed", "older version", "recipe changed"}
    cases = {(action.name, "of the change" if kind in of_changes else kind) for _, action, kind, *_ in CASES.values()}
    assert set(table) == cases


def merge_rows(first: PartitionFacts, second: PartitionFacts) -> PartitionFacts:
    """Return a row with the problems of both rows."""
    default = PartitionFacts()
    changes = {name: value for name, value in vars(first).items() if value != getattr(default, name)}
    return replace(second, **changes)


ORDER = ["not planned", "missing", "check failed", "not materialized", "built again as it was", "not checked"]


@pytest.mark.parametrize(("first", "second"), [*pairwise(ORDER), ("not checked", "a warning that is accepted now")])
def test_the_first_case_that_applies_decides(first: str, second: str) -> None:
    assert decide_action(merge_rows(CASES[first][0], CASES[second][0])).kind == CASES[first][2]


def test_decisions_are_compared_by_the_fields_that_users_read() -> None:
    one = Decision(action=BUILD, kind="missing", reason="missing", name="d/a")
    assert one == replace(one, partition="p", checks=("x",))
    assert str(one) == "d/a: missing"
