"""One finding over all partitions: newly examined ones, and stored verdicts on the others."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest
from dataprep_assets.engine.checks.check import Check, Checkable, Finding
from dataprep_assets.engine.checks.results import read_known_results
from dataprep_assets.engine.checks.verdicts import (
    WholeArtifactChecks,
    find_all,
    find_in_all_partitions,
    find_in_workers,
    remember_verdicts,
    summarize_findings,
)
from dataprep_assets.engine.staleness.decide import CHECK_FAILED, Action
from dataprep_assets.engine.staleness.status import decide_checks
from dataprep_assets.engine.yaml.declaration import ChecksDeclaration
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore, LocalArtifacts
from dataprep_assets.orchestration.checks import examine_artifact
from dataprep_assets_tests.engine.notices import (
    KEYS,
    NOTICE_CHECKS,
    Notices,
    OpenedNotice,
    build_notice,
    make_notices_specs,
    open_notices,
    write_notices,
)
from dataprep_assets_tests.messages import raises

WORDS, POLITE = NOTICE_CHECKS
STRICTER = (replace(WORDS, version=2), POLITE)


@pytest.fixture
def store(tmp_path: Path) -> LocalArtifacts:
    return LocalArtifacts(tmp_path / "artifacts")


@pytest.fixture
def declaration(tmp_path: Path, store: LocalArtifacts) -> Notices:
    """Declare three finished notices, the second of which is in upper case."""
    made = write_notices(tmp_path / "words", n_1="NO ENTRY\n")
    for key in KEYS:
        build_notice(made, store, key)
    return made


def found(
    declaration: Notices,
    store: LocalArtifacts,
    examined: Sequence[str],
    checks: tuple[Check[OpenedNotice], ...] = NOTICE_CHECKS,
) -> dict[str, Finding]:
    """Return the findings after a run over some of the notices."""
    return dict(make_notices_specs(declaration, checks)[0].examine(store, examined))


def check_notice(store: ArtifactStore, declaration: Notices, partition: str) -> dict[str, Finding]:
    """Return the findings of the checks in one notice."""
    return {check.name: check.run(*open_notices(declaration, store, [partition])) for check in NOTICE_CHECKS}


def find_unchecked(spec: ArtifactSpec, store: LocalArtifacts, slots: Sequence[str | None]) -> list[str | None]:
    """Return the partitions that a check must examine."""
    return [slot for slot, one in decide_checks(spec, store, slots).items() if one.action is not Action.KEEP]


def find_failed_checks(spec: ArtifactSpec, store: LocalArtifacts) -> dict[str | None, tuple[Action, tuple[str, ...]]]:
    """Return the partitions that failed a blocking check, each with the decision about it and the checks."""
    found = decide_checks(spec, store, KEYS)
    return {slot: (one.action, one.checks) for slot, one in found.items() if one.kind == CHECK_FAILED}


def test_a_run_of_all_examines_all(declaration: Notices, store: LocalArtifacts) -> None:
    words, polite = found(declaration, store, KEYS).values()
    assert words.passed
    assert words.facts == {
        "notices_checked": 3,
        "notices_checked_before": 0,
        "notices_failed": 0,
        "notices_not_checked_yet": 0,
    }
    assert words.summary == "All 3 notices pass. For example, n-0: 3 words"
    assert (polite.passed, polite.facts["notices_failed"]) == (False, 1)
    assert polite.summary == "1 of 3 notices fails; the first is n-1: shouted"
    assert list(polite.table) == [{"notice": "n-1", "finding": "shouted"}]


def test_partitions_that_were_never_examined_are_counted(declaration: Notices, store: LocalArtifacts) -> None:
    words = found(declaration, store, ["n-0"])["has_words"]
    assert words.passed
    assert words.facts["notices_not_checked_yet"] == 2
    assert words.summary == "1 notice passes: 2 not checked yet. For example, n-0: 3 words"


def test_verdicts_on_other_partitions_are_kept_while_their_content_is_unchanged(
    declaration: Notices, store: LocalArtifacts
) -> None:
    found(declaration, store, KEYS)
    later = found(declaration, store, ["n-0"])
    assert later["has_words"].facts["notices_not_checked_yet"] == 0
    assert later["has_words"].facts["notices_checked_before"] == 2
    assert later["has_words"].summary == "All 3 notices pass: 1 checked now, 2 before. For example, n-0: 3 words"
    assert later["is_polite"].summary == "1 of 3 notices fails (1 checked now, 2 before); the first is n-1: shouted"
    assert not later["is_polite"].passed, "a bad partition stays visible until it is mended"
    (declaration.folder / "n-1.txt").write_text("please do not enter\n")
    build_notice(declaration, store, "n-1")
    other = found(declaration, store, ["n-0"])
    assert other["is_polite"].passed
    assert other["is_polite"].facts["notices_not_checked_yet"] == 1, "its verdict was about other content"
    assert found(declaration, store, ["n-1"])["is_polite"].facts["notices_not_checked_yet"] == 0


def test_a_partition_that_passed_and_is_unchanged_is_not_checked_again(
    declaration: Notices, store: LocalArtifacts
) -> None:
    notices, *_ = make_notices_specs(declaration)
    assert find_unchecked(notices, store, KEYS) == list(KEYS)
    found(declaration, store, KEYS)
    assert find_unchecked(notices, store, KEYS) == [], "what only warns is proven"
    (declaration.folder / "n-2.txt").write_text("")
    build_notice(declaration, store, "n-2")
    assert find_unchecked(notices, store, KEYS) == ["n-2"], "its verdict was about other content"
    assert not found(declaration, store, ["n-2"])["has_words"].passed
    assert find_unchecked(notices, store, KEYS) == ["n-2"], "what failed is proven again"
    stricter, *_ = make_notices_specs(declaration, STRICTER)
    assert find_unchecked(stricter, store, KEYS) == list(KEYS), "an older version of a proof says nothing of this one"
    often = declaration.model_copy(update={"prove": ChecksDeclaration(again_every="1s")})
    time.sleep(1.1)
    assert find_unchecked(make_notices_specs(often)[0], store, KEYS) == list(KEYS), "it was long ago"


def test_a_failed_blocking_check_is_stored_until_the_artifact_changes(
    declaration: Notices, store: LocalArtifacts
) -> None:
    notices, *_ = make_notices_specs(declaration)
    (declaration.folder / "n-2.txt").write_text("")
    build_notice(declaration, store, "n-2")
    found(declaration, store, KEYS)
    once, vainly = {"n-2": (Action.BUILD, ("has_words",))}, {"n-2": (Action.CHECK, ("has_words",))}
    assert find_failed_checks(notices, store) == once
    mark_rebuilding = store.mark_for_rebuild([declaration.artifact("notices", "n-2")])
    assert build_notice(declaration, mark_rebuilding, "n-0")[1]
    assert not build_notice(declaration, mark_rebuilding, "n-2")[1], "it is built again"
    assert build_notice(declaration, mark_rebuilding, "n-2")[1], "once"
    assert find_failed_checks(notices, store) == vainly, "it has the content that failed"
    for _ in range(2):
        found(declaration, store, ["n-2"])
        assert find_failed_checks(notices, store) == vainly
    (declaration.folder / "n-2.txt").write_text("")
    (declaration.folder / "n-1.txt").write_text("a word")
    for key in ("n-1", "n-2"):
        build_notice(declaration, store, key)
    found(declaration, store, ["n-1", "n-2"])
    assert find_failed_checks(notices, store) == vainly
    (declaration.folder / "n-2.txt").write_text("a word")
    build_notice(declaration, store, "n-2")
    found(declaration, store, ["n-2"])
    assert find_failed_checks(notices, store) == {}
    (declaration.folder / "n-2.txt").write_text("")
    build_notice(declaration, store, "n-2")
    found(declaration, store, ["n-2"])
    assert find_failed_checks(notices, store) == once, "it passed in between"


def test_verdicts_of_an_older_version_of_a_check_do_not_count(declaration: Notices, store: LocalArtifacts) -> None:
    """A stricter version of a check also examines partitions that passed the older version."""
    found(declaration, store, KEYS)
    stricter = found(declaration, store, ["n-0"], STRICTER)
    assert stricter["has_words"].facts["notices_not_checked_yet"] == 2
    assert stricter["is_polite"].facts["notices_not_checked_yet"] == 2, "they are examined together"
    assert found(declaration, store, ["n-1", "n-2"], STRICTER)["has_words"].facts["notices_not_checked_yet"] == 0


def test_a_verdict_with_another_limit_does_not_count(declaration: Notices, store: LocalArtifacts) -> None:
    by = {limit: [replace(WORDS, limit=limit), POLITE] for limit in (0.1, 0.2)}
    found(declaration, store, KEYS, by[0.1])
    unknown = "notices_not_checked_yet"
    assert found(declaration, store, ["n-0"], by[0.1])["has_words"].facts[unknown] == 0
    assert found(declaration, store, ["n-0"], by[0.2])["has_words"].facts[unknown] == 2


def test_stored_verdicts_from_before_a_check_existed_do_not_count(declaration: Notices, store: LocalArtifacts) -> None:
    found(declaration, store, KEYS, [WORDS])
    assert found(declaration, store, ["n-0"])["is_polite"].facts["notices_not_checked_yet"] == 2


@pytest.mark.parametrize("text", ["", "{", "no json"])
def test_stored_verdicts_that_cannot_be_read_do_not_count(
    declaration: Notices, store: LocalArtifacts, text: str
) -> None:
    found(declaration, store, KEYS)
    (store.root / "notices" / ".findings" / "notices" / "n-2.json").write_text(text)
    assert found(declaration, store, ["n-0"])["has_words"].facts["notices_not_checked_yet"] == 1


def test_no_verdict_is_stored_for_a_missing_partition(declaration: Notices, store: LocalArtifacts) -> None:
    artifact = Artifact(dataset="notices", name="notices", partition="n-9")
    remember_verdicts(artifact, store, None, check_notice(store, declaration, "n-0"), NOTICE_CHECKS)
    assert list(store.root.rglob("n-9*")) == []


def test_the_verdict_is_stored_with_its_sentence(declaration: Notices, store: LocalArtifacts) -> None:
    found(declaration, store, KEYS)
    notices, *_ = make_notices_specs(declaration)
    kept = read_known_results(notices, store, ["n-1"])["n-1"].findings
    assert (kept["is_polite"].passed, kept["is_polite"].summary) == (False, "shouted")


def test_a_verdict_on_a_partition_that_another_run_replaced_meanwhile_does_not_count(
    declaration: Notices, store: LocalArtifacts
) -> None:
    def prove(partitions: Sequence[str]) -> Iterator[tuple[str, dict[str, Finding]]]:
        for partition in partitions:
            said = check_notice(store, declaration, partition)
            if partition == "n-1":  # simulate a second run that rebuilds this partition
                (declaration.folder / "n-1.txt").write_text("")
                build_notice(declaration, store, "n-1")
            yield partition, said

    of_notice, examined = partial(declaration.artifact, "notices"), ["n-1", "n-2"]
    notices, *_ = make_notices_specs(declaration)
    checks = dict(find_in_all_partitions(store, NOTICE_CHECKS, KEYS, examined, artifact=of_notice, find=prove))
    assert checks["has_words"].summary == "1 shard passes: 2 not checked yet. For example, n-2: 3 words"
    assert find_unchecked(notices, store, KEYS) == ["n-0", "n-1"]
    found(declaration, store, ["n-1"])
    assert find_failed_checks(notices, store)["n-1"] == (Action.BUILD, ("has_words",))
    (declaration.folder / "n-1.txt").write_text("a word")
    build_notice(declaration, store, "n-1")
    checks = dict(find_in_all_partitions(store, NOTICE_CHECKS, KEYS, ["n-1"], artifact=of_notice, find=prove))
    assert checks["has_words"].facts["shards_checked"] == 0
    assert find_failed_checks(notices, store)["n-1"] == (Action.CHECK, ("has_words",)), "it has the content that failed"


def test_a_verdict_on_a_whole_artifact_that_another_run_replaced_meanwhile_does_not_count(
    declaration: Notices, store: LocalArtifacts
) -> None:
    greeting = declaration.model_copy(update={"greeting": "Dear reader, "})

    def has_words(store: ArtifactStore) -> Finding:
        # Simulate a second run that rebuilds an input and this artifact during the check.
        build_notice(greeting, store, "n-1")
        list(made.build(BuildRequest(store=store)))
        return Finding(passed=True, summary="words")

    _, made, _ = make_notices_specs(declaration)
    list(made.build(BuildRequest(store=store)))
    checks = WholeArtifactChecks(checks=(replace(WORDS, function=has_words),), open=lambda store, _: store)
    board = replace(made, check_groups=(checks,))
    examine_artifact(board, store, [None])
    assert find_unchecked(board, store, [None]) == [None]
    examine_artifact(board, store, [None])
    assert find_unchecked(board, store, [None]) == []


def test_a_check_of_all_partitions_runs_once_and_its_failure_applies_to_each(
    declaration: Notices, store: LocalArtifacts
) -> None:
    passes = [True]

    def are_few(_: ArtifactStore) -> Finding:
        return Finding(passed=passes[0], summary="3 notices")

    def together(*checks: Check[ArtifactStore]) -> WholeArtifactChecks[ArtifactStore]:
        return WholeArtifactChecks(checks=checks, open=lambda store, _: store)

    few = Check("are_few", "There are few notices.", are_few)
    alone = make_notices_specs(declaration)[0]
    notices = replace(alone, check_groups=(*alone.check_groups, together(few)))
    assert find_unchecked(notices, store, KEYS) == [*KEYS, None]
    examine_artifact(notices, store, KEYS)
    assert find_unchecked(notices, store, KEYS) == []
    other = replace(notices, declaration=declaration.model_copy(update={"small_cell": 5}))
    assert find_unchecked(other, store, KEYS) == [None], "it may look at the declaration"
    examine_artifact(other, store, KEYS)
    assert find_unchecked(other, store, KEYS) == []
    new = replace(alone, check_groups=(*alone.check_groups, together(few, Check("is_new", "It is new.", are_few))))
    assert find_unchecked(new, store, ["n-0"]) == [None]
    passes[0] = False
    examine_artifact(notices, store, ["n-0"], is_rebuild=True)
    assert find_failed_checks(notices, store) == dict.fromkeys([*KEYS, None], (Action.BUILD, ("are_few",)))


# --- summarized findings


def finding(passed: bool = True, **changes: object) -> Finding:
    return Finding(passed=passed, summary="so it is", facts={"rows": 3}, table=({"row": 1},), **changes)  # type: ignore[arg-type]


def test_a_run_of_one_partition_shows_its_numbers_and_its_table() -> None:
    one = summarize_findings({"a": finding(), "b": finding()}, ["a"], 0)
    assert (one.facts["rows"], list(one.table)) == (3, [{"row": 1}])
    assert one.summary == "All 2 shards pass: 1 checked now, 1 before. For example, a: so it is"
    assert "rows" not in summarize_findings({"a": finding(), "b": finding()}, ["a", "b"], 0).facts


def test_counts_are_written_as_a_person_would() -> None:
    many = {f"s-{at}": finding() for at in range(2500)}
    assert summarize_findings(many, ["s-1"], 0).summary.startswith(
        "All 2,500 shards pass: 1 checked now, 2,499 before. For"
    )
    assert (
        summarize_findings(many, [], 3).summary == "2,500 shards pass: 0 checked now, 2,500 before, 3 not checked yet."
    )
    assert summarize_findings({"a": finding()}, ["a"], 0).summary == "The shard passes. For example, a: so it is"
    assert summarize_findings({"a": finding(False)}, ["a"], 0).summary == "1 of 1 shard fails; the first is a: so it is"


def test_only_warnings_give_a_warning_and_one_failure_gives_a_failure() -> None:
    warned = {"a": finding(False, warning=True), "b": finding()}
    assert summarize_findings(warned, ["a"], 0).warning
    assert not summarize_findings(warned | {"c": finding(False)}, ["a"], 0).warning


# --- find_all, find_in_workers


def test_an_unreadable_artifact_fails_every_check(declaration: Notices, store: LocalArtifacts) -> None:
    (notice,) = open_notices(declaration, store, ["n-0"])

    def opened(partition: Checkable) -> OpenedNotice:
        store.require(partition.artifact)
        return OpenedNotice(partition.artifact, store)

    assert find_all(NOTICE_CHECKS, opened, None, notice)["has_words"].passed
    (store.directory(notice.artifact) / "receipt.json").write_text("{}")
    refused = find_all(NOTICE_CHECKS, opened, None, notice)
    assert refused.keys() == {"has_words", "is_polite"}
    assert not any(one.passed for one in refused.values())
    assert all("receipt.json" in one.summary for one in refused.values())


@dataclass(frozen=True)
class Number:
    """A partition that is a number to check."""

    number: int

    @property
    def artifact(self) -> Artifact:
        return Artifact(dataset="d", name="numbers", partition=f"p-{self.number}")


def is_even(subject: Number) -> dict[str, Finding]:
    """Check in a worker that a number is even; raise for 13."""
    if subject.number == 13:
        raise ZeroDivisionError("13")
    return {"even": Finding(passed=subject.number % 2 == 0, summary=str(subject.number))}


def test_partitions_are_checked_in_worker_processes() -> None:
    verdicts: Iterator[tuple[str, dict[str, Finding]]] = find_in_workers([Number(n) for n in range(4)], is_even, 2)
    assert {name: found["even"].passed for name, found in verdicts} == {
        "p-0": True,
        "p-1": False,
        "p-2": True,
        "p-3": False,
    }


def test_a_bug_in_a_check_is_raised_and_names_the_partition() -> None:
    with raises(DataprepError, "p-13", "ZeroDivisionError", 13):
        list(find_in_workers([Number(13)], is_even, 1))


def test_without_partitions_there_is_nothing_to_check() -> None:
    assert list(find_in_workers([], is_even, 2)) == []


def test_runs_of_a_backfill_keep_the_verdicts_on_other_partitions(declaration: Notices, store: LocalArtifacts) -> None:
    """In runs of ten partitions all other verdicts are kept; the same holds after a change of one partition."""
    of_notice = partial(declaration.artifact, "notices")

    def prove(partitions: Sequence[str]) -> Iterator[tuple[str, dict[str, Finding]]]:
        for partition in partitions:
            yield partition, check_notice(store, declaration, partition)

    def run(examined: Sequence[str]) -> dict[str, Finding]:
        return dict(find_in_all_partitions(store, NOTICE_CHECKS, keys, examined, artifact=of_notice, find=prove))

    keys = [f"n-{i:03}" for i in range(200)]
    for first in range(0, len(keys), 10):
        now = keys[first : first + 10]
        for key in now:
            (declaration.folder / f"{key}.txt").write_text("NO" if key == "n-007" else "a word")
            build_notice(declaration, store, key)
        checks = run(now)
        assert checks["has_words"].facts["shards_not_checked_yet"] == len(keys) - first - 10
        assert checks["is_polite"].facts["shards_failed"] == 1
        assert "the first is n-007: shouted" in checks["is_polite"].summary
    (declaration.folder / "n-100.txt").write_text("another")
    build_notice(declaration, store, "n-100")
    checks = run(keys[:10])
    assert checks["has_words"].facts["shards_not_checked_yet"] == 1, "its verdict was about other content"
    assert run([])["has_words"].facts["shards_not_checked_yet"] == 1
