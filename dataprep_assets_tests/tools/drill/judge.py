"""Find out what detects a damaged artifact: `verify_path`, a blocking check, or `status`.

Each runs in this process, by the same function that the command or the asset check calls.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.verify import VerifiedArtifact, verify_path
from dataprep_assets_tests.tools.drill.box import Box, Target


@dataclass(frozen=True, kw_only=True)
class Notice:
    """The reports about one damaged artifact, and about others.

    Attributes:
        verify: The first defect of it that `verify_path` reported.
        proof: The first blocking check of it that failed, and its message.
        status: The reason why `status` calls it stale.
        others: Other artifacts with a defect by `verify_path`.
        crash: An exception of a check that is not a finding, which is a bug.
        run: The message of the run during which a fault occurred, if it left nothing wrong.
    """

    verify: str = ""
    proof: str = ""
    status: str = ""
    others: tuple[str, ...] = ()
    crash: str = ""
    run: str = ""

    @property
    def noticed(self) -> bool:
        """Whether `verify_path` or a blocking check reported the right artifact."""
        return bool(self.verify or self.proof or self.run)


def failed_proofs(
    spec: ArtifactSpec, store: ArtifactStore, examined: Sequence[str], *, blocking: bool = True
) -> Iterator[tuple[str, str]]:
    """Yield name and summary of each check that fails, as the asset check of `orchestration.checks` evaluates it.

    Args:
        spec: The artifact of the checks.
        store: Its store.
        examined: The partitions of the run.
        blocking: Skip checks that only warn.
    """
    if not spec.checks:
        return
    wanted = {proof.name for proof in spec.checks if proof.blocking or not blocking}
    try:
        for name, finding in spec.examine(store, examined):
            if not finding.passed and not finding.warning and name in wanted:
                yield name, finding.summary
    except DataprepError as error:
        yield min(wanted), str(error)


def told_of(verdict: VerifiedArtifact) -> tuple[str, ...]:
    """Return everything that `verify_path` reports about an artifact."""
    return (*verdict.defects, *(f"its input {name} has changed" for name in verdict.changed_inputs))


def notice(box: Box, target: Target, examined: Sequence[str] | None = None, *, status: bool = True) -> Notice:
    """Return the reports about a box with one damaged artifact.

    Args:
        box: The artifacts.
        target: The artifact that should be reported.
        examined: The partitions of the checks' run; by default that of the target.
        status: Also run `status`, which takes the longest.
    """
    store, target = box.bench.store, box.now(target)
    said, others = "", []
    location = str(box.folder(target))
    for verdict in verify_path(box.root):
        told = told_of(verdict)
        if told and verdict.location == location:
            said = told[0]
        elif told:
            others.append(verdict.name)
    if examined is None:
        examined = [] if target.slot is None else [target.slot]
    proof = crash = why = ""
    try:
        failed = list(failed_proofs(target.spec, store, examined))
        proof = ": ".join(failed[0]) if failed else ""
    except Exception as error:  # an error in a check is a bug, and counts as a result of the drill
        crash = f"{type(error).__name__}: {error}"
    if status:
        try:
            why = next((one.reason for one in find_stale(box.specs, store) if _is(one.spec, one.partition, target)), "")
        except Exception as error:
            crash = crash or f"status: {type(error).__name__}: {error}"
    return Notice(verify=said, proof=proof, status=why, others=tuple(others), crash=crash)


def _is(spec: ArtifactSpec | None, partition: str | None, target: Target) -> bool:
    return spec is not None and spec.path == target.spec.path and partition in (None, target.slot)


def alarms(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> list[str]:
    """Return every report about intact artifacts: defects, failed blocking checks, stale ones."""
    found = [f"verify: {v.name}: {told[0]}" for v in verify_path(store.root) if (told := told_of(v))]
    for spec in specs:
        slots = [slot for slot in spec.slots(store) if slot is not None]
        found += [f"{'/'.join(spec.path)}: {name}: {said}" for name, said in failed_proofs(spec, store, slots)]
    return found + [f"status: {one}" for one in find_stale(specs, store)]
