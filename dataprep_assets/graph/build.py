"""The life of a small artifact: current, or built once under a lock and committed with its receipt.

Shards of token bins have a life of their own (`pipelines/corpus/token_bins.py`), because they are built in parallel parts.
"""

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dataprep_assets.graph.facts import Facts
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore, Joined
from dataprep_assets.integrity.commit import publish_directory, staging
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt, Verification, now, record_files, versions


@dataclass(frozen=True, kw_only=True)
class Written:
    """What a writer says of the files it left in the staging directory, for the receipt.

    `digests` are SHA-256 of files that it knows already, by name: these are not read again. `joined` are files that
    `ArtifactStore.join` made.
    """

    inputs: Mapping[str, str]
    facts: Facts | Mapping[str, Any]
    ledger: Ledger | None = None
    digests: Mapping[str, str] = field(default_factory=dict)
    joined: tuple[Joined, ...] = ()


def ensure(
    artifact: Artifact,
    store: ArtifactStore,
    key: str,
    write: Callable[[Path], Written],
    verification: Verification = "full",
    *,
    resumes: bool = False,
) -> tuple[Receipt, bool]:
    """Build the artifact with this key unless it is current. Returns the receipt and whether it was reused.

    `write` fills an empty staging directory. When it raises, what was there before stays as it is. A writer that
    `resumes` finds there what it left when it was killed under the same key.
    """
    directory = store.directory(artifact)
    with staging(directory, key) as staged:
        receipt = store.current(artifact, key, verification)
        if receipt is not None or not resumes:
            shutil.rmtree(staged)
        if receipt is not None:
            return receipt, True
        staged.mkdir(exist_ok=True)
        started = time.monotonic()
        written = write(staged)
        seconds = time.monotonic() - started
        joined = {j.record.path: j for j in written.joined}
        digests = {**written.digests, **{name: j.record.sha256 for name, j in joined.items()}}
        files = {record.path: record for record in record_files(staged, digests)}
        files |= {name: j.record for name, j in joined.items()}
        receipt = Receipt(
            dataset=artifact.dataset,
            artifact=artifact.name,
            partition=artifact.partition,
            key=key,
            inputs=written.inputs,
            files=tuple(files[name] for name in sorted(files)),
            facts=written.facts.to_json() if isinstance(written.facts, Facts) else written.facts,
            ledger=written.ledger,
            measured={"created": now(), "versions": versions(), "wall_seconds": round(seconds, 3)},
        )
        receipt.write(staged)
        publish_directory(staged, directory)
        store.publish(artifact, joined)
    return receipt, False
