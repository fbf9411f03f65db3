"""How a small artifact is made: reused if it is current, else built once under a lock and committed with its receipt.

Shards of token bins are made differently, in parallel parts (`pipelines/corpus/token_bins.py`).
"""

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dataprep_assets.engine.artifact.facts import Facts
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.staleness.decide import Action, FileFacts, PartitionFacts, decide
from dataprep_assets.integrity.artifacts import ArtifactStore, JoinedFile
from dataprep_assets.integrity.commit import publish_directory, staging
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt, Verification, current_time, record_files, versions


@dataclass(frozen=True, kw_only=True)
class WrittenFiles:
    """What a writer reports about the files in the staging directory, for the receipt.

    `inputs` is what they were made of, name → digest. `digests` are the SHA-256 digests that the writer already knows,
    by file name: these files are not read again. `joined` are files that `ArtifactStore.join` made. `recipe` is given
    if only writing completes it; the receipt then has this one. `sources` are lines of the source files.
    """

    inputs: Mapping[str, str]
    facts: Facts | None = None
    ledger: Ledger | None = None
    digests: Mapping[str, str] = field(default_factory=dict)
    joined: tuple[JoinedFile, ...] = ()
    recipe: Recipe | None = None
    sources: tuple[Mapping[str, Any], ...] = ()


def ensure(
    recipe: Recipe,
    store: ArtifactStore,
    write: Callable[[Path], WrittenFiles],
    verification: Verification = "full",
    *,
    resumes: bool = False,
) -> tuple[Receipt, bool]:
    """Build the artifact of a recipe unless it is current.

    Args:
        recipe: What to make.
        store: Where artifacts are.
        write: Fills an empty staging directory. If it raises, the artifact that was there before stays as it is.
        verification: How thoroughly a finished artifact is verified before it is reused.
        resumes: Whether the writer finds in staging what it left there when it was killed while building the same key.

    Returns:
        The receipt, and whether the artifact was reused.
    """
    artifact = recipe.artifact
    directory = store.directory(artifact)
    # A bucket sends what was built here and could not be sent. It is asked before the lock, under which that would pass
    # for a build that is at work; asking costs it no reading of files.
    if store.knows_digests and (sent := _kept(recipe, store, verification)) is not None:
        return sent, True
    with staging(directory, recipe.key) as staged:
        # asked under the lock: another process may have built it while this one waited
        receipt = _kept(recipe, store, verification)
        # what a killed build left: only a writer that resumes can tell what of it is whole
        if receipt is not None or not resumes:
            shutil.rmtree(staged)
        if receipt is not None:
            return receipt, True
        staged.mkdir(exist_ok=True)
        started = time.monotonic()
        written = write(staged)
        seconds = time.monotonic() - started
        made = written.recipe or recipe
        joined = {j.record.path: j for j in written.joined}
        digests = {**written.digests, **{name: j.record.sha256 for name, j in joined.items()}}
        files = {record.path: record for record in record_files(staged, digests)}
        # what a bucket joins on its server was never in the staging directory
        files |= {name: j.record for name, j in joined.items()}
        receipt = Receipt(
            dataset=artifact.dataset,
            artifact=artifact.name,
            partition=artifact.partition,
            key=made.key,
            inputs=written.inputs,
            files=tuple(files[name] for name in sorted(files)),
            facts=written.facts.to_json() if written.facts is not None else {},
            ledger=written.ledger,
            sources=written.sources,
            measured={"created": current_time(), "versions": versions(), "wall_seconds": round(seconds, 3)},
            recipe=made.to_json(),
        )
        # after all other files, and then one rename: what a kill leaves before that is no artifact
        receipt.write(staged)
        publish_directory(staged, directory)
        # to the bucket, if that is where artifacts are: in a folder the rename has published it
        store.publish(artifact, joined)
    return receipt, False


def _kept(recipe: Recipe, store: ArtifactStore, verification: Verification) -> Receipt | None:
    """The receipt of the artifact that is there, if it has the wanted key and is intact, and needs no build."""
    receipt = store.current(recipe.artifact, recipe.key, verification)
    if (
        receipt is None
        or decide(PartitionFacts(files=FileFacts(receipt=receipt, recipe=recipe))).action is Action.BUILD
    ):
        return None
    return receipt
