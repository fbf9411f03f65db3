"""Builds of artifacts: the build order, the typed facts, and the build of one small artifact under a lock.

Shards of token bins are built in parallel parts by `pipelines/corpus/token_bins.py`.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.staleness.decide import Action, FileFacts, PartitionFacts, decide_action
from dataprep_assets.errors import IntegrityError
from dataprep_assets.integrity.artifacts import ArtifactStore, JoinedFile
from dataprep_assets.integrity.commit import open_staging, publish_directory
from dataprep_assets.integrity.receipt import (
    Ledger,
    Receipt,
    Verification,
    format_current_time,
    read_versions,
    record_files,
)

# Typed facts are values that an artifact records in its receipt, in addition to what every receipt contains.
#
# An artifact's module declares one subclass. The build creates an instance, and readers of the receipt use the class::
#
#     class CombinedBinsFacts(Facts):
#         dtype: str
#         shards: int
#
#     WrittenFiles(facts=CombinedBinsFacts(dtype="uint16", shards=3))
#     CombinedBinsFacts.from_receipt(receipt).shards
#
# The receipt stores facts as JSON under the same names. Unset fields are not written, so a fact that only some
# artifacts have does not appear in the other receipts.


class Facts(BaseModel):
    """Base class of an artifact's facts. Unknown facts, which newer versions write, are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @classmethod
    def from_receipt(cls, receipt: Receipt) -> Self:
        """Return the facts of a receipt.

        Raises IntegrityError with the artifact's and the fact's name if a fact is missing or has the wrong type.
        """
        try:
            return cls.model_validate(dict(receipt.facts))
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()[:3])
            name = "/".join(filter(None, (receipt.dataset, receipt.artifact, receipt.partition)))
            raise IntegrityError(f"{name}: invalid facts in its receipt ({faults}). Rebuild the artifact") from None

    def to_json(self) -> dict[str, Any]:
        """Return the facts as JSON values for the receipt."""
        return self.model_dump(mode="json", exclude_unset=True)


# A dataset is built one artifact after the other, inputs first.
#
# Artifacts whose partitions are split into ranges (`Partitions.ranges`) are built together, range by range. An artifact
# that streams its source then needs the local files of only one range at a time.


def group_by_build(specs: Sequence[ArtifactSpec]) -> list[tuple[ArtifactSpec, ...]]:
    """Group the artifacts that are built together, keeping their order. Most groups have one artifact."""

    def get_group(spec: ArtifactSpec) -> object:
        return spec.partitions if spec.partitions is not None and spec.partitions.ranges is not None else spec

    # `groupby` joins only adjacent specs, which is enough because specs that share ranges are adjacent.
    return [tuple(members) for _, members in groupby(specs, key=get_group)]


def iterate_builds(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> Iterator[tuple[ArtifactSpec, Sequence[str]]]:
    """Yield each artifact with the partitions to build (empty if unpartitioned).

    The order is computed lazily, because building earlier artifacts plans the partitions of later ones.
    """
    for members in group_by_build(specs):
        partitions = members[0].partitions
        for partition_range in [()] if partitions is None else partitions.cut_ranges(store):
            yield from ((spec, partition_range) for spec in members)


def find_ancestors(specs: Iterable[ArtifactSpec]) -> set[ArtifactSpec]:
    """Return the artifacts of the same dataset that these are built from, directly or indirectly."""
    ancestor_specs: set[ArtifactSpec] = set()
    remaining = list(specs)
    while remaining:
        sources = {source for source in remaining.pop().inputs if isinstance(source, ArtifactSpec)} - ancestor_specs
        ancestor_specs |= sources
        remaining += sources
    return ancestor_specs


@dataclass(frozen=True, kw_only=True)
class WrittenFiles:
    """Facts about the written files in the staging directory, for the receipt.

    Attributes:
        inputs: Name → digest of each input of the files.
        facts: Typed facts of the artifact.
        ledger: Row counts of the artifact.
        digests: File name → SHA-256 digest, for files whose digest the writer already knows. These are not read again.
        joined: Files that were built by `ArtifactStore.join`.
        recipe: The final recipe, if it is known only after writing; the receipt records it.
        sources: One line per source file.
    """

    inputs: Mapping[str, str]
    facts: Facts | None = None
    ledger: Ledger | None = None
    digests: Mapping[str, str] = field(default_factory=dict)
    joined: tuple[JoinedFile, ...] = ()
    recipe: Recipe | None = None
    sources: tuple[Mapping[str, Any], ...] = ()


def ensure_built(
    recipe: Recipe,
    store: ArtifactStore,
    write: Callable[[Path], WrittenFiles],
    verification: Verification = "full",
    *,
    resumes: bool = False,
) -> tuple[Receipt, bool]:
    """Build the artifact of a recipe unless it is current.

    Args:
        recipe: The artifact to build and everything that determines its bytes.
        store: Where artifacts are stored.
        write: Writes the files into an empty staging directory. If it raises, an existing artifact stays unchanged.
        verification: How thoroughly a finished artifact is verified before it is reused.
        resumes: Whether the writer can resume from files in staging that a killed build of the same key left.

    Returns:
        The receipt, and whether the artifact was reused.
    """
    artifact = recipe.artifact
    directory = store.directory(artifact)
    # Look for a current receipt before taking the lock. In a bucket, this call also uploads artifacts that were built
    # here but not uploaded yet, and the upload would mistake our own lock for a build in progress. The call is cheap,
    # because the bucket knows the digests and no file is read.
    if store.knows_digests and (kept_receipt := _find_current_receipt(recipe, store, verification)) is not None:
        return kept_receipt, True
    with open_staging(directory, recipe.key) as staged:
        # Repeat the check under the lock, because another process may have built the artifact meanwhile.
        receipt = _find_current_receipt(recipe, store, verification)
        # Remove the files that a killed build left in the staging folder, unless they are needed by a writer that can
        # resume.
        if receipt is not None or not resumes:
            shutil.rmtree(staged)
        if receipt is not None:
            return receipt, True
        staged.mkdir(exist_ok=True)
        start_time = time.monotonic()
        written_files = write(staged)
        seconds = time.monotonic() - start_time
        final_recipe = written_files.recipe or recipe
        joined_files = {j.record.path: j for j in written_files.joined}
        digests = {**written_files.digests, **{name: j.record.sha256 for name, j in joined_files.items()}}
        files = {record.path: record for record in record_files(staged, digests)}
        # Add the records of joined files, because a bucket joins files on its server, so these were never in staging.
        files |= {name: j.record for name, j in joined_files.items()}
        receipt = Receipt(
            dataset=artifact.dataset,
            artifact=artifact.name,
            partition=artifact.partition,
            key=final_recipe.key,
            inputs=written_files.inputs,
            files=tuple(files[name] for name in sorted(files)),
            facts=written_files.facts.to_json() if written_files.facts is not None else {},
            ledger=written_files.ledger,
            sources=written_files.sources,
            measured={"created": format_current_time(), "versions": read_versions(), "wall_seconds": round(seconds, 3)},
            recipe=final_recipe.to_json(),
        )
        # Write the receipt last and publish with one rename, so that a build that is killed earlier leaves no artifact.
        receipt.write(staged)
        publish_directory(staged, directory)
        # Upload the artifact if the store is a bucket. In a folder, the rename has already published it.
        store.publish(artifact, joined_files)
    return receipt, False


def _find_current_receipt(recipe: Recipe, store: ArtifactStore, verification: Verification) -> Receipt | None:
    """Return the existing artifact's receipt if its key matches, it is intact and no rebuild is due; otherwise None."""
    receipt = store.find_current(recipe.artifact, recipe.key, verification)
    if (
        receipt is None
        or decide_action(PartitionFacts(files=FileFacts(receipt=receipt, recipe=recipe))).action is Action.BUILD
    ):
        return None
    return receipt
