"""Findings as asset checks: what a proof says, in the words and tables of the UI."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import dagster as dg

from dataprep_assets.errors import DataprepError
from dataprep_assets.graph.finding import Finding
from dataprep_assets.graph.verdicts import Verdicts, remember, remembered
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.dataset import partitions_of_run, table
from resources import StorageResource

MAX_ROWS = 50

Findings = Callable[[dg.AssetCheckExecutionContext, StorageResource], Iterator[tuple[str, Finding]]]
"""Runs the proofs of an asset: yields the name of each check with its finding."""


def checks_of(
    key: dg.AssetKey, descriptions: Mapping[str, str], findings: Findings, *, reports: Collection[str] = ()
) -> dg.AssetChecksDefinition:
    """The checks of one asset: name → what it proves. All but the `reports` block what is downstream.

    They run in one step, because they read the same files; a person may still execute any of them alone.
    """
    specs = [
        dg.AssetCheckSpec(name, asset=key, description=description, blocking=name not in reports)
        for name, description in descriptions.items()
    ]

    @dg.multi_asset_check(name="__".join([*key.path, "checks"]), specs=specs, can_subset=True)
    def checks(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[dg.AssetCheckResult]:
        wanted = {check.name for check in context.selected_asset_check_keys}
        try:
            for name, finding in findings(context, storage):
                if name in wanted:
                    wanted.remove(name)
                    yield check_result(key, name, finding)
        except DataprepError as error:
            # what the proofs need cannot be read (a damaged receipt, a missing shard): that is a verdict too
            for name in sorted(wanted):
                yield check_result(key, name, Finding(passed=False, summary=str(error)))

    return checks


def of_all_partitions(
    run: dg.DagsterRun,
    store: ArtifactStore,
    partitions: Sequence[str],
    names: Collection[str],
    *,
    artifact: Callable[[str], Artifact],
    prove: Callable[[Sequence[str]], Verdicts],
    noun: str = "shard",
) -> Iterator[tuple[str, Finding]]:
    """One finding of each proof for all partitions of an artifact, whatever partitions the run is about.

    Those of the run are examined by `prove`, and their verdicts remembered; for the others the remembered verdict on
    their present content counts. So the latest result is about all, and a bad partition stays visible until it is
    mended. A memory from before one of the proofs existed counts as none.
    """
    examined = partitions_of_run(run, partitions)
    fresh: dict[str, dict[str, Finding]] = {}
    for partition, findings in prove(examined):
        remember(artifact(partition), store, findings)
        fresh[partition] = findings
    found: dict[str, dict[str, Finding]] = {}
    for partition in partitions:
        kept = fresh.get(partition) or remembered(artifact(partition), store)
        if kept is not None and kept.keys() >= set(names):
            found[partition] = kept
    unknown = len(partitions) - len(found)
    for name in names:
        yield name, summarized({p: of[name] for p, of in found.items()}, examined, unknown, noun)


def check_result(key: dg.AssetKey, name: str, finding: Finding) -> dg.AssetCheckResult:
    """The result of the check `name` on the asset `key`."""
    metadata: dict[str, dg.MetadataValue] = {fact: _metadata_value(value) for fact, value in finding.facts.items()}
    if finding.table:
        metadata["table"] = table(finding.table[:MAX_ROWS])
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=name,
        passed=finding.passed,
        description=finding.summary,
        severity=dg.AssetCheckSeverity.WARN if finding.warning else dg.AssetCheckSeverity.ERROR,
        metadata=metadata,
    )


def summarized(findings: Mapping[str, Finding], examined: Sequence[str], unknown: int, noun: str = "shard") -> Finding:
    """One finding for all partitions: passes when every one did; lists the bad ones, or shows the first's own table."""
    bad = {partition: f for partition, f in findings.items() if not f.passed}
    facts: dict[str, int | float | str] = {
        f"{noun}s_examined": len(examined),
        f"{noun}s_failed": len(bad),
        f"{noun}s_not_examined_yet": unknown,
    }
    shown = next((findings[p] for p in examined if p in findings), None)
    if shown is not None and len(examined) == 1:
        facts |= shown.facts
    if not bad:
        return Finding(
            passed=True,
            facts=facts,
            table=shown.table if shown else (),
            summary=f"All {len(findings)} {noun}s examined so far pass."
            + (f" For example {examined[0]}: {shown.summary}" if shown and shown.summary else ""),
        )
    first = next(iter(bad))
    return Finding(
        passed=False,
        warning=all(f.warning for f in bad.values()),
        facts=facts,
        summary=f"{len(bad)} of {len(findings)} {noun}s fail, first {first}: {bad[first].summary}",
        table=tuple({noun: partition, "what": f.summary} for partition, f in bad.items()),
    )


def _metadata_value(value: int | float | str) -> dg.MetadataValue:
    if isinstance(value, str):
        return dg.MetadataValue.text(value)
    # NumPy scalars come in too; Dagster wants builtins
    return dg.MetadataValue.float(float(value)) if isinstance(value, float) else dg.MetadataValue.int(int(value))
