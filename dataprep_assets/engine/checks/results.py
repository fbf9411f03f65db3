"""Current results of an artifact's checks.

Results on partitions are the cached `verdicts`. Results on an unpartitioned artifact, and results of checks on all
partitions together, are cached similarly (`.findings/<asset>.json`). These also depend on the declaration.

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
NOT_CHECKED_KEYS |= {"text_separator", "csv_delimiter", "csv_quotes"}  # already in the keys of the affected artifacts
"""Keys of a declaration that do not affect checks."""


def known_results(spec: ArtifactSpec, store: ArtifactStore, slots: Sequence[str | None]) -> dict[str | None, Verdict]:
    """Return the current results on the given partitions and, under `None`, on the artifact as a whole."""
    of_each, of_whole = _apart(spec)
    verdicts: dict[str | None, Verdict] = {}
    # `some`: adding a check must not invalidate the results of the other checks
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
    """Return the checks of single partitions, and the checks of the artifact as a whole."""
    return (
        [check for check in spec.checks if check.name in spec.partition_checks],
        [check for check in spec.checks if check.name not in spec.partition_checks],
    )


def check_facts(
    spec: ArtifactSpec, store: ArtifactStore, slots: Sequence[str | None]
) -> dict[str | None, dict[str, CheckFacts | None]]:
    """Return each check that judges one of these partitions → its current result, or None.

    For a partitioned artifact, the key `None` has the checks that judge all partitions together. Their blocking
    failures are also facts of each partition, because any partition may be the cause.
    """
    checks = spec.checks
    if not checks or not spec.kept:
        return {}
    facts = {slot: _facts(verdict, checks) for slot, verdict in known_results(spec, store, slots).items()}
    names = [check.name for check in checks]

    def facts_of(slot: str | None, names: Iterable[str]) -> dict[str, CheckFacts | None]:
        return {name: facts.get(slot, {}).get(name) for name in names}

    if not spec.partition_checks:  # all checks examine the artifact as a whole
        return {slot: facts_of(None, names) for slot in slots}
    whole_facts = facts_of(None, [check.name for check in _apart(spec)[1]])
    failed = {name: fact for name, fact in whole_facts.items() if fact is not None and fact.blocks and not fact.passed}
    return {**{slot: {**facts_of(slot, spec.partition_checks), **failed} for slot in slots}, None: whole_facts}


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
    """A check that did not pass. `blocks` if it blocks downstream artifacts. An empty sentence means not examined."""

    sentence: str = ""
    blocks: bool = False


def results(spec: ArtifactSpec, store: ArtifactStore) -> dict[str, NotPassed | None]:
    """Return the result of each check of an artifact in its current state, by name.

    The result is None if the check passed, or if the declaration accepts its failure. A check without a result on one
    of the partitions counts as not examined.
    """
    checks, accept = spec.checks, spec.declaration.accept
    try:
        facts = check_facts(spec, store, spec.slots(store))
    except DataprepError:  # the partitions are not planned yet
        return {check.name: NotPassed() for check in checks}
    failures: dict[str, NotPassed | None] = {}
    for check in checks:
        check_results = [one[check.name] for one in facts.values() if check.name in one]
        is_accepted = not check.blocking and check.name in accept
        failed = [] if is_accepted else [one for one in check_results if one is not None and not one.passed]
        # errors are sorted before warnings, because only the first failure is reported
        failed.sort(key=lambda one: not one.blocks)
        first_failure = NotPassed(failed[0].sentence, failed[0].blocks) if failed else None
        failures[check.name] = NotPassed() if None in check_results else first_failure
    return failures


def oldest(spec: ArtifactSpec, store: ArtifactStore) -> float | None:
    """Return the time of the oldest current result, in seconds since 1970; None if there is none."""
    return min((verdict.at for verdict in known_results(spec, store, spec.slots(store)).values()), default=None)


def failed_checks(source: DatasetInput, store: ArtifactStore) -> set[str]:
    """Return the blocking checks that an artifact of another dataset currently fails, according to cached verdicts.

    The cached records are read directly, because the artifact's spec is not known here.
    """
    folder, split, failed = folder_of(source.dataset, source.name, store), source.split, set[str]()
    # partitions of a split are named `<split>-…`
    paths = [path for path in folder.glob("*.json") if split is None or path.stem.startswith(f"{split}-")]
    for path in [folder.with_name(f"{source.path[-1]}.json"), *paths]:
        if (record := read_record(path)) is None or not (bad := failing_in(record)):
            continue
        artifacts = [Artifact(dataset=source.dataset, name=name, partition=part) for name, part in record["artifacts"]]
        # a verdict on an earlier build with other content does not apply to the current one
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
    """Store the findings about an artifact as a whole, not about single partitions.

    If no check judges single partitions, they are stored only if all partitions were `examined`. `version` is the
    version of the artifacts before they were examined (`verdicts.write_record`).
    """
    _, checks = _apart(spec)
    is_complete = bool(spec.partition_checks) or set(examined) >= set(spec.slots(store))
    # Dagster may run a single check, whose finding must not replace the complete record
    if spec.kept and checks and is_complete and findings.keys() >= {check.name for check in checks}:
        write_record(
            _path(spec, store), spec.artifacts(store), store, version, findings, checks, _declaration_digest(spec)
        )


def _declaration_digest(spec: ArtifactSpec) -> str:
    return digest_value(spec.declaration.model_dump(mode="json", exclude=NOT_CHECKED_KEYS))


def _path(spec: ArtifactSpec, store: ArtifactStore) -> Path:
    """Return the record of checks on the whole artifact, next to the folder with the records of its partitions."""
    return folder_of(spec.declaration.dataset, spec.name, store).with_name(f"{spec.path[-1]}.json")
