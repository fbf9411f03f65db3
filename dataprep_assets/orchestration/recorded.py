"""What an instance has recorded of a dataset: which partitions were materialized, and the latest result of each check.

It is read in two ways: through Dagster, whatever storage the instance has (`InstanceRecords` in `instance_records.py`),
and from the SQLite of this machine without Dagster (`sqlite_records.py`), because importing it takes longer than all
that a command with nothing to do does besides.

Entry points: `Recorded`, `latest_evaluations`, `failed_checks`.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from dataprep_assets.graph.asset_path import AssetPath
from dataprep_assets.graph.spec import ArtifactSpec

__all__ = ["Check", "Evaluation", "Recorded", "failed_checks", "latest_evaluations"]

Check = tuple[AssetPath, str]
"""The path of an asset, and the name of one of its checks."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The latest result of a check.

    Attributes:
        passed: Whether it passed.
        blocks: Whether a failure of it is an error, not a warning.
        accepted: The reason with which the declaration accepts a failure; None if it passed without.
    """

    passed: bool
    blocks: bool
    accepted: str | None = None


class Recorded(Protocol):
    """The records of one instance."""

    def is_materialized(self, path: AssetPath) -> bool:
        """Whether an asset was ever materialized, and not wiped since."""

    def partitions(self, path: AssetPath) -> Set[str]:
        """The partitions of an asset that were ever materialized, and not wiped since."""

    def evaluations(self, checks: Sequence[Check]) -> Mapping[Check, Evaluation]:
        """The latest evaluation of each of these checks; without those whose latest execution has no result."""


def latest_evaluations(specs: Sequence[ArtifactSpec], recorded: Recorded) -> dict[Check, Evaluation | None]:
    """Every check of the artifacts → its latest evaluation, or None if it was never evaluated."""
    checks = [(spec.path, proof.name) for spec in specs if spec.proofs is not None for proof in spec.proofs.proofs]
    found = recorded.evaluations(checks)
    return {check: found.get(check) for check in checks}


def failed_checks(
    specs: Sequence[ArtifactSpec], recorded: Recorded, *, never_ran: bool = False
) -> dict[AssetPath, list[str]]:
    """Path of an asset → names of its blocking checks whose latest result is a failure.

    Args:
        specs: The artifacts to look at.
        recorded: Where their checks were recorded.
        never_ran: Also include checks that a run would have to evaluate: blocking checks without a result, and checks
            whose acceptance in the declaration has changed since their last result.

    A failure that counts as a warning blocks nothing, and is left out.
    """
    blocking = {
        (spec.path, proof.name)
        for spec in specs
        if spec.proofs is not None
        for proof in spec.proofs.proofs
        if proof.blocking
    }
    accept = {spec.path: spec.declaration.accept for spec in specs}
    found: dict[AssetPath, list[str]] = {}
    for (path, name), evaluation in latest_evaluations(specs, recorded).items():
        if (path, name) not in blocking:
            why = accept[path].get(name)
            bad = never_ran and evaluation is not None and _judged_otherwise(evaluation, why)
        elif evaluation is None:
            bad = never_ran
        else:
            bad = not evaluation.passed and evaluation.blocks
        if bad:
            found.setdefault(path, []).append(name)
    return found


def _judged_otherwise(evaluation: Evaluation, why: str | None) -> bool:
    """Whether a warning check was evaluated under another `accept` reason than `why` (None: not accepted)."""
    if evaluation.passed:
        return evaluation.accepted is not None and evaluation.accepted != why
    return why is not None
