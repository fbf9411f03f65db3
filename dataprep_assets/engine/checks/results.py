"""The results of an artifact's checks that hold for it as it is now.

Results on partitions are those of `verdicts`. Results on an artifact without partitions, and of checks that look at all
partitions together, are kept likewise (`.findings/<asset>.json`), with what else they may depend on: the declaration.

Entry points: `known_results`, `check_facts`, `results`, `oldest`, `failed_checks`; `keep`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataprep_assets.engine.artifact.spec import ArtifactSpec, DatasetInput
from dataprep_assets.engine.checks.check import Check, Finding
from dataprep_assets.engine.checks.verdicts import (
    Verdict,
    content_of,
    failing_in,
    folder_of,
    of_slots,
    read_record,
    verdict_in,
    version_of,
    write_record,
)
from dataprep_assets.engine.staleness.decide import CheckFacts
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.stores.files import digest_value

NOT_CHECKED_KEYS = {"description", "owners", "card", "accept", "automation", "workers", "prove"}
NOT_CHECKED_KEYS |= {"text_separator", "csv_delimiter", "csv_quotes"}  # in the keys of the artifacts that they decide
"""Keys of a declaration that do not affect checks."""


def known_results(spec: ArtifactSpec, store: ArtifactStore, slots: Sequence[str | None]) -> dict[str | None, Verdict]:
    """The results on the given partitions that hold now, and under `None` those on the artifact as a whole."""
    of_each, of_whole = _apart(spec)
    verdicts: dict[str | None, Verdict] = {}
    # `some`: a check that is new does not take away what the others found
    if of_each:
        artifacts = {slot: spec.located(store, slot) for slot in slots if slot is not None}
        verdicts.update(of_slots(artifacts, store, of_each, some=True))
    if of_whole:
        all_artifacts = spec.artifacts(store)
        version = version_of(all_artifacts, store)
        whole_verdict = verdict_in(
            _path(spec, store), all_artifacts, store, version, of_whole, some=True, of=_declaration_digest(spec)
        )
        verdicts |= {} if whole_verdict is None else {None: whole_verdict}
    return verdicts


def _apart(spec: ArtifactSpec) -> tuple[list[Check[Any]], list[Check[Any]]]:
    """The checks of each partition by itself, and those of the artifact as a whole."""
    return (
        [check for check in spec.checks if check.name in spec.partition_checks],
        [check for check in spec.checks if check.name not in spec.partition_checks],
    )


def check_facts(
    spec: ArtifactSpec, store: ArtifactStore, slots: Sequence[str | None]
) -> dict[str | None, dict[str, CheckFacts | None]]:
    """Each check that judges one of these partitions → its result that holds, or None.

    Of a partitioned artifact, `None` has the checks that judge all partitions together; what fails of them is a fact of
    each partition, because any may be the reason.
    """
    checks = spec.checks
    if not checks or not spec.kept:
        return {}
    facts = {slot: _facts(verdict, checks) for slot, verdict in known_results(spec, store, slots).items()}
    names = [check.name for check in checks]

    def of(slot: str | None, names: Iterable[str]) -> dict[str, CheckFacts | None]:
        return {name: facts.get(slot, {}).get(name) for name in names}

    if not spec.partition_checks:  # all of its checks look at the whole
        return {slot: of(None, names) for slot in slots}
    whole_facts = of(None, [check.name for check in _apart(spec)[1]])
    failed = {name: fact for name, fact in whole_facts.items() if fact is not None and fact.blocks and not fact.passed}
    return {**{slot: {**of(slot, spec.partition_checks), **failed} for slot in slots}, None: whole_facts}


def _facts(verdict: Verdict, checks: Sequence[Check[Any]]) -> dict[str, CheckFacts]:
    blocking = {check.name for check in checks if check.blocking}
    return {
        name: CheckFacts(
            passed=finding.passed,
            blocks=name in blocking and not finding.warning,
            sentence=finding.summary,
            at=verdict.at,
            rebuilt=verdict.rebuilt,
        )
        for name, finding in verdict.findings.items()
    }


@dataclass(frozen=True)
class NotPassed:
    """What a check says that did not pass; `blocks` if nothing is to be made of its artifact. Empty: not examined."""

    sentence: str = ""
    blocks: bool = False


def results(spec: ArtifactSpec, store: ArtifactStore) -> dict[str, NotPassed | None]:
    """What each check of an artifact says as it is now, by name; None if it passed, or if its declaration accepts that
    it did not.

    A check without a result on one of the partitions did not.
    """
    checks, accept = spec.checks, spec.declaration.accept
    try:
        facts = check_facts(spec, store, spec.slots(store))
    except DataprepError:  # not planned
        return {check.name: NotPassed() for check in checks}
    failures: dict[str, NotPassed | None] = {}
    for check in checks:
        check_results = [one[check.name] for one in facts.values() if check.name in one]
        is_accepted = not check.blocking and check.name in accept
        failed = [] if is_accepted else [one for one in check_results if one is not None and not one.passed]
        # errors before warnings: the first is what is told
        failed.sort(key=lambda one: not one.blocks)
        first_failure = NotPassed(failed[0].sentence, failed[0].blocks) if failed else None
        failures[check.name] = NotPassed() if None in check_results else first_failure
    return failures


def oldest(spec: ArtifactSpec, store: ArtifactStore) -> float | None:
    """When the oldest of the results that hold now was given, in seconds since 1970; None if there is none."""
    return min((verdict.at for verdict in known_results(spec, store, spec.slots(store)).values()), default=None)


def failed_checks(source: DatasetInput, store: ArtifactStore) -> set[str]:
    """The blocking checks that an artifact of another dataset failed as it is now, by its kept verdicts: its spec is
    not known here."""
    folder, split, failed = folder_of(source.dataset, source.name, store), source.split, set[str]()
    # of a split the partitions are `<split>-…`
    paths = [path for path in folder.glob("*.json") if split is None or path.stem.startswith(f"{split}-")]
    for path in [folder.with_name(f"{source.path[-1]}.json"), *paths]:
        if (record := read_record(path)) is None or not (bad := failing_in(record)):
            continue
        artifacts = [Artifact(dataset=source.dataset, name=name, partition=part) for name, part in record["artifacts"]]
        # a verdict on an earlier build says nothing about this one
        if record["version"] == version_of(artifacts, store) or record["content"] == content_of(artifacts, store):
            failed.update(bad)
    return failed


def keep(
    spec: ArtifactSpec,
    store: ArtifactStore,
    version: str | None,
    findings: Mapping[str, Finding],
    examined: Sequence[str | None] = (None,),
) -> None:
    """Keep the findings about an artifact as a whole, not about single partitions.

    Where no check judges single partitions, they are kept if all partitions were `examined`. `version` is its
    artifacts' from before they were examined (`verdicts.write_record`).
    """
    _, checks = _apart(spec)
    is_complete = bool(spec.partition_checks) or set(examined) >= set(spec.slots(store))
    # Dagster may evaluate one check by itself
    if spec.kept and checks and is_complete and findings.keys() >= {check.name for check in checks}:
        write_record(
            _path(spec, store), spec.artifacts(store), store, version, findings, checks, _declaration_digest(spec)
        )


def _declaration_digest(spec: ArtifactSpec) -> str:
    return digest_value(spec.declaration.model_dump(mode="json", exclude=NOT_CHECKED_KEYS))


def _path(spec: ArtifactSpec, store: ArtifactStore) -> Path:
    """The record of what concerns all of an artifact, beside the folder with those of its partitions."""
    return folder_of(spec.declaration.dataset, spec.name, store).with_name(f"{spec.path[-1]}.json")
