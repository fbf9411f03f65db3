"""Current results of an artifact's checks.

Results for partitions are the cached `verdicts`. Results for an unpartitioned artifact, and results of checks on all
partitions together, are cached in `.findings/<asset>.json`. These also depend on the declaration.

Entry points: `read_known_results`, `read_check_facts`, `read_results`, `find_oldest`, `find_failed_checks`;
`store_findings`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataprep_assets.engine.artifact.spec import ArtifactSpec, DatasetInput
from dataprep_assets.engine.checks.check import Check, Finding
from dataprep_assets.engine.checks.verdicts import (
    Verdict,
    digest_claims,
    find_failing,
    identify_version,
    locate_records,
    read_record,
    read_slot_verdicts,
    read_verdict,
    write_record,
)
from dataprep_assets.engine.staleness.decide import CheckFacts
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.stores.files import digest_value

NOT_CHECKED_KEYS = {"description", "owners", "card", "accept", "automation", "workers", "prove"}
# Changes of these three keys are also ignored, because they change the recipe keys of the affected artifacts, which are
# then rebuilt and checked again.
NOT_CHECKED_KEYS |= {"text_separator", "csv_delimiter", "csv_quotes"}
"""Keys of a declaration that do not affect checks."""


def read_known_results(
    spec: ArtifactSpec, store: ArtifactStore, slots: Sequence[str | None]
) -> dict[str | None, Verdict]:
    """Return the current results for the given partitions and, under `None`, for the artifact as a whole."""
    of_each, of_whole = _separate_checks(spec)
    verdicts: dict[str | None, Verdict] = {}
    # Accept partial verdicts, because adding a check must not invalidate the results of the other checks.
    if of_each:
        artifacts = {slot: spec.locate_artifact(store, slot) for slot in slots if slot is not None}
        verdicts.update(read_slot_verdicts(artifacts, store, of_each, allow_partial=True))
    if of_whole:
        all_artifacts = spec.artifacts(store)
        version = identify_version(all_artifacts, store)
        whole_verdict = read_verdict(
            _locate_record(spec, store),
            all_artifacts,
            store,
            version,
            of_whole,
            allow_partial=True,
            digest=_digest_declaration(spec),
        )
        verdicts |= {} if whole_verdict is None else {None: whole_verdict}
    return verdicts


def _separate_checks(spec: ArtifactSpec) -> tuple[list[Check[Any]], list[Check[Any]]]:
    """Return the checks of single partitions, and the checks of the artifact as a whole."""
    return (
        [check for check in spec.checks if check.name in spec.partition_checks],
        [check for check in spec.checks if check.name not in spec.partition_checks],
    )


def read_check_facts(
    spec: ArtifactSpec, store: ArtifactStore, slots: Sequence[str | None]
) -> dict[str | None, dict[str, CheckFacts | None]]:
    """Return partition → name of each check of the partition → its current result, or None.

    For a partitioned artifact, the key `None` has the checks that judge all partitions together. Their blocking
    failures are also facts of each partition, because any partition may be the cause.
    """
    checks = spec.checks
    if not checks or not spec.kept:
        return {}
    facts = {slot: _build_facts(verdict, checks) for slot, verdict in read_known_results(spec, store, slots).items()}
    names = [check.name for check in checks]

    def select_facts(slot: str | None, names: Iterable[str]) -> dict[str, CheckFacts | None]:
        return {name: facts.get(slot, {}).get(name) for name in names}

    if not spec.partition_checks:  # all checks are about the artifact as a whole
        return {slot: select_facts(None, names) for slot in slots}
    whole_facts = select_facts(None, [check.name for check in _separate_checks(spec)[1]])
    failed = {name: fact for name, fact in whole_facts.items() if fact is not None and fact.blocks and not fact.passed}
    return {**{slot: {**select_facts(slot, spec.partition_checks), **failed} for slot in slots}, None: whole_facts}


def _build_facts(verdict: Verdict, checks: Sequence[Check[Any]]) -> dict[str, CheckFacts]:
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
class UnpassedCheck:
    """A check that did not pass. The sentence is empty if the check has not run.

    `blocks` is whether the failure blocks downstream artifacts.
    """

    sentence: str = ""
    blocks: bool = False


def read_results(spec: ArtifactSpec, store: ArtifactStore) -> dict[str, UnpassedCheck | None]:
    """Return the result of each check of an artifact in its current state, by name.

    The result is None if the check passed, or if the declaration accepts its failure. A check that lacks a result for
    any of the partitions counts as not run.
    """
    checks, accept = spec.checks, spec.declaration.accept
    try:
        facts = read_check_facts(spec, store, spec.slots(store))
    except DataprepError:  # the plan of the partitions is missing or damaged
        return {check.name: UnpassedCheck() for check in checks}
    failures: dict[str, UnpassedCheck | None] = {}
    for check in checks:
        check_results = [result[check.name] for result in facts.values() if check.name in result]
        is_accepted = not check.blocking and check.name in accept
        failed = [] if is_accepted else [result for result in check_results if result is not None and not result.passed]
        # Put errors before warnings, because only the first failure is reported.
        failed.sort(key=lambda result: not result.blocks)
        first_failure = UnpassedCheck(failed[0].sentence, failed[0].blocks) if failed else None
        failures[check.name] = UnpassedCheck() if None in check_results else first_failure
    return failures


def find_oldest(spec: ArtifactSpec, store: ArtifactStore) -> float | None:
    """Return the time of the oldest current result, in seconds since 1970; None without results."""
    return min((verdict.at for verdict in read_known_results(spec, store, spec.slots(store)).values()), default=None)


def find_failed_checks(source: DatasetInput, store: ArtifactStore) -> set[str]:
    """Return the names of the blocking checks that an artifact of another dataset currently fails.

    The cached records are read directly, because the artifact's spec is not known here.
    """
    folder, split, failed = locate_records(source.dataset, source.name, store), source.split, set[str]()
    # Select the records of a split by file name, because its partitions are named `<split>-…`.
    paths = [path for path in folder.glob("*.json") if split is None or path.stem.startswith(f"{split}-")]
    for path in [folder.with_name(f"{source.path[-1]}.json"), *paths]:
        if (record := read_record(path)) is None or not (failing := find_failing(record)):
            continue
        artifacts = [Artifact(dataset=source.dataset, name=name, partition=part) for name, part in record["artifacts"]]
        # Ignore a verdict on an earlier build, unless the current build has the same content.
        if record["version"] == identify_version(artifacts, store) or record["content"] == digest_claims(
            artifacts, store
        ):
            failed.update(failing)
    return failed


def store_findings(
    spec: ArtifactSpec,
    store: ArtifactStore,
    version: str | None,
    findings: Mapping[str, Finding],
    examined: Sequence[str | None] = (None,),
) -> None:
    """Store the findings about an artifact as a whole.

    If no check judges single partitions, the findings are stored only if all partitions were `examined`. `version` is
    the version of the artifacts before they were examined (`verdicts.write_record`).
    """
    _, checks = _separate_checks(spec)
    is_complete = bool(spec.partition_checks) or set(examined) >= set(spec.slots(store))
    # Store only the findings of all checks together, because Dagster may run a single check, whose finding must not
    # replace the complete record.
    if spec.kept and checks and is_complete and findings.keys() >= {check.name for check in checks}:
        write_record(
            _locate_record(spec, store),
            spec.artifacts(store),
            store,
            version,
            findings,
            checks,
            _digest_declaration(spec),
        )


def _digest_declaration(spec: ArtifactSpec) -> str:
    return digest_value(spec.declaration.model_dump(mode="json", exclude=NOT_CHECKED_KEYS))


def _locate_record(spec: ArtifactSpec, store: ArtifactStore) -> Path:
    """Return the record of checks on the whole artifact, next to the folder with the records of its partitions."""
    return locate_records(spec.declaration.dataset, spec.name, store).with_name(f"{spec.path[-1]}.json")
