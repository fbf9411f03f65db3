"""How artifacts are made: in which order, and of a small one: reused if it is current, else built once under a lock.

Shards of token bins are made differently, in parallel parts (`pipelines/corpus/token_bins.py`).
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
from dataprep_assets.engine.staleness.decide import Action, FileFacts, PartitionFacts, decide
from dataprep_assets.errors import IntegrityError
from dataprep_assets.integrity.artifacts import ArtifactStore, JoinedFile
from dataprep_assets.integrity.commit import publish_directory, staging
from dataprep_assets.integrity.receipt import Ledger, Receipt, Verification, current_time, record_files, versions

# Typed facts: what an artifact's receipt says beyond its files and counts, declared beside the artifact.
#
# An artifact's module declares one subclass; its build makes an instance, and readers of the receipt use the class::
#
#     class CombinedBinsFacts(Facts):
#         dtype: str
#         shards: int
#
#     Written(facts=CombinedBinsFacts(dtype="uint16", shards=3))
#     CombinedBinsFacts.of(receipt).shards
#
# A receipt on disk has the same names as JSON. A field that was not set is not written, so a fact that only some
# artifacts have does not appear in the others.


class Facts(BaseModel):
    """Base class of an artifact's facts, see above. Unknown facts, from a newer version, are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @classmethod
    def of(cls, receipt: Receipt) -> Self:
        """The facts of a receipt.

        Raises IntegrityError, naming artifact and fact, if one is missing or has a wrong type.
        """
        try:
            return cls.model_validate(dict(receipt.facts))
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()[:3])
            name = "/".join(filter(None, (receipt.dataset, receipt.artifact, receipt.partition)))
            raise IntegrityError(f"{name}: invalid facts in its receipt ({wrong}). Rebuild the artifact") from None

    def to_json(self) -> dict[str, Any]:
        """The facts as JSON values for the receipt."""
        return self.model_dump(mode="json", exclude_unset=True)


# The order in which a dataset is made: one artifact after the other, inputs first.
#
# Artifacts whose partitions are cut into ranges (`Partitions.ranges`) are made together, range by range: what
# streams its source keeps only the files of one range.


def together(specs: Sequence[ArtifactSpec]) -> list[tuple[ArtifactSpec, ...]]:
    """The artifacts in order, grouped into those that are made together: nearly every one is alone."""

    def group(spec: ArtifactSpec) -> object:
        return spec.partitions if spec.partitions is not None and spec.partitions.ranges is not None else spec

    # `groupby` joins neighbours only: specs that share their ranges stand side by side in the list of a dataset
    return [tuple(members) for _, members in groupby(specs, key=group)]


def in_order(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> Iterator[tuple[ArtifactSpec, Sequence[str]]]:
    """Yield each artifact with the partitions to make (none if unpartitioned), lazily: earlier artifacts plan the
    partitions of later ones."""
    for members in together(specs):
        partitions = members[0].partitions
        for partition_range in [()] if partitions is None else partitions.cut_ranges(store):
            yield from ((spec, partition_range) for spec in members)


def ancestors(specs: Iterable[ArtifactSpec]) -> set[ArtifactSpec]:
    """The artifacts of the same dataset that these are made of, directly or through others."""
    ancestor_specs: set[ArtifactSpec] = set()
    remaining = list(specs)
    while remaining:
        sources = {source for source in remaining.pop().inputs if isinstance(source, ArtifactSpec)} - ancestor_specs
        ancestor_specs |= sources
        remaining += sources
    return ancestor_specs


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
    if store.knows_digests and (kept_receipt := _kept(recipe, store, verification)) is not None:
        return kept_receipt, True
    with staging(directory, recipe.key) as staged:
        # asked under the lock: another process may have built it while this one waited
        receipt = _kept(recipe, store, verification)
        # what a killed build left: only a writer that resumes can tell what of it is whole
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
        # what a bucket joins on its server was never in the staging directory
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
            measured={"created": current_time(), "versions": versions(), "wall_seconds": round(seconds, 3)},
            recipe=final_recipe.to_json(),
        )
        # after all other files, and then one rename: what a kill leaves before that is no artifact
        receipt.write(staged)
        publish_directory(staged, directory)
        # to the bucket, if that is where artifacts are: in a folder the rename has published it
        store.publish(artifact, joined_files)
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
