"""The remembered verdicts on the partitions of an artifact in one file, so that a run reads those of its own alone.

A check judges all partitions, whichever a run is about. Reading the verdict and the receipt of each of them, in every
run of a backfill of thousands, would take time that grows with the square of their number. So what was read is kept
(`.findings/<artifact>.known`), each with the versions of the two files that it was read from: where these are the same,
neither is opened again. It is a cache of a cache: whoever deletes it loses time.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dataprep_assets.graph.finding import Finding
from dataprep_assets.graph.spec import Proof
from dataprep_assets.integrity.commit import write_atomically
from dataprep_assets.integrity.digest import canonical_json

Verdict = dict[str, Finding] | None
"""The finding of each proof, or None where no verdict counts."""


class KnownVerdicts:
    """The file of one artifact, for the present versions of its proofs."""

    def __init__(self, path: Path, proofs: Sequence[Proof]) -> None:
        self._path = path
        self._proofs = {proof.name: proof.version for proof in proofs}
        self._read = self._entries()
        self._now: dict[str, Any] = {}
        self._all_passed = dict.fromkeys(self._proofs, Finding(passed=True, summary=""))

    def of(self, partition: str, versions: list[str | None]) -> tuple[bool, Verdict]:
        """Whether the verdict on a partition is known from files of these versions, and the verdict."""
        entry = self._read.get(partition)
        if not isinstance(entry, dict) or entry.get("of") != versions:
            return False, None
        self._now[partition] = entry
        failed = entry["failed"]
        if failed is None:
            return True, None
        return True, self._all_passed | {name: Finding(**said) for name, said in failed.items()}

    def keep(self, partition: str, versions: list[str | None], verdict: Verdict) -> None:
        """Remember the verdict on a partition, read from files of these versions."""
        failed = None if verdict is None else {name: _kept(one) for name, one in verdict.items() if not one.passed}
        self._now[partition] = {"of": versions, "failed": failed}

    def write(self) -> None:
        """Write what was asked for and kept, if it is not in the file already."""
        if self._now != self._read:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            value = {"proofs": self._proofs, "partitions": self._now}
            write_atomically(self._path, canonical_json(value), durably=False)

    def _entries(self) -> Mapping[str, Any]:
        try:
            value = json.loads(self._path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(value, dict) or value.get("proofs") != self._proofs:
            return {}
        return value["partitions"] if isinstance(value.get("partitions"), dict) else {}


def _kept(finding: Finding) -> Mapping[str, Any]:
    return {"passed": finding.passed, "summary": finding.summary, "warning": finding.warning}
