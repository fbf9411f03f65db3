"""The sources of a schedule as they are in the store: their shards, and the documents of these.

The schedule's own artifact keeps the documents of every shard that it ever named, so that what was read before a
retraction can still be told after it.

Entry points: `found_sources`, `ShardDocuments`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError, IntegrityError, MissingArtifactError
from dataprep_assets.formats.document_index import ENDS, IDS, TOKEN_BINS
from dataprep_assets.graph.finding import ledger_of
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.handle import ArtifactHandle
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.schedule.declaration import ScheduleDeclaration
from dataprep_assets.planning.shard_plan import SHARD_PLAN, read_plan, split_of
from dataprep_assets.serving.packs import open_packs, pack_shard
from dataprep_assets.serving.revise import Documents, FoundSource
from dataprep_assets.serving.source_order import PackTable
from dataprep_assets.serving.training_data import SCHEDULE_ARTIFACT, documents_folder, packs_file
from dataprep_assets.serving.training_schedule import SourceShard
from dataprep_assets.stream.token_shard import TokenBinsFacts


def shards_of(store: ArtifactStore, name: str, dataset: str, split: str) -> list[tuple[Artifact, Receipt]]:
    """The finished shards of a split, in the order of its plan.

    Raises MissingArtifactError, naming the dataset, if one is not there; ConfigError for a split that it does not have.
    """
    manifest = Artifact(dataset=dataset, name="manifest")
    if store.receipt(manifest) is None:
        if store.receipt(Artifact(dataset=dataset, name="blend_plan")) is not None:
            raise ConfigError(
                f"{name}: source {dataset} is a blend, which is a mixture itself. Declare its texts as corpora, and "
                "name each of them with its weight"
            )
        raise MissingArtifactError(
            f"{name}: source {dataset}: not there: {manifest}. Run it first: dataprep run {dataset}"
        )
    plan = read_plan(store.local(manifest, [SHARD_PLAN]))
    artifacts = [Artifact(dataset=dataset, name=TOKEN_BINS, partition=key) for key in plan if split_of(key) == split]
    if not artifacts:
        there = ", ".join(sorted({split_of(key) for key in plan}))
        raise ConfigError(f"{name}: source {dataset}: has no split {split!r}; it has {there}")
    found = list(zip(artifacts, store.receipts(artifacts), strict=True))
    if missing := [str(artifact.partition) for artifact, receipt in found if receipt is None]:
        raise MissingArtifactError(
            f"{name}: source {dataset}: {len(missing)} of {len(found)} shards are not there, first {missing[0]}. "
            f"Run it first: dataprep run {dataset}"
        )
    return [(artifact, receipt) for artifact, receipt in found if receipt is not None]


@dataclass(frozen=True)
class ShardDocuments:
    """The documents and packs of shards by the content of these: of those that are there, and of those that the present
    artifact of the schedule keeps. `found` are the shards that are there."""

    store: ArtifactStore
    name: str
    found: dict[str, tuple[Artifact, Receipt]] = field(default_factory=dict)
    _packs: dict[tuple[str, int], PackTable] = field(default_factory=dict)

    @property
    def kept(self) -> ArtifactHandle | None:
        """The present artifact of the schedule."""
        artifact = Artifact(dataset=self.name, name=SCHEDULE_ARTIFACT)
        return None if self.store.receipt(artifact) is None else ArtifactHandle.of(self.store, artifact)

    def __call__(self, content: str) -> Documents:
        """The documents of a shard."""
        if content in self.found:
            artifact, receipt = self.found[content]
            handle, folder = ArtifactHandle(self.store, artifact, receipt), ""
        else:
            handle, folder = self.keeping(content), f"{documents_folder(content)}/"
        names = {record.path for record in handle.files}
        ids = _numbers(handle, f"{folder}{IDS}") if f"{folder}{IDS}" in names else None
        return Documents(ends=_numbers(handle, f"{folder}{ENDS}"), ids=ids)

    def keeping(self, content: str) -> ArtifactHandle:
        """The artifact of the schedule if it keeps this shard's documents; raises IntegrityError if it does not."""
        kept = self.kept
        if kept is None or not any(record.path.startswith(documents_folder(content)) for record in kept.files):
            raise IntegrityError(
                f"{self.name}: the documents of the shard {content[:12]}, which earlier steps read, were kept in the "
                "artifact of the schedule alone, and are not there any more. Restore that artifact from a copy"
            )
        return kept

    def packs(self, shard: SourceShard, length: int) -> PackTable:
        """The packs of a shard."""
        key = (shard.content, length)
        if key not in self._packs:
            name, kept = packs_file(*key), self.kept
            if kept is not None and any(record.path == name for record in kept.files):
                self._packs[key] = open_packs(kept.path(name))
            else:
                self._packs[key] = pack_shard(self(shard.content).ends, length)
        return self._packs[key]


def _numbers(handle: ArtifactHandle, name: str) -> NDArray[np.uint64]:
    return np.asarray(handle.numbers(name, "uint64")[:], np.uint64)


def found_sources(
    declaration: ScheduleDeclaration, store: ArtifactStore
) -> tuple[Sequence[FoundSource], ShardDocuments]:
    """The declared sources as they are now, and the documents of their shards.

    Raises MissingArtifactError for a source that was not made.
    """
    sources, documents = [], ShardDocuments(store, declaration.dataset)
    for declared in declaration.sources:
        found = shards_of(store, declaration.dataset, declared.dataset, declared.split)
        documents.found.update({receipt.content: (artifact, receipt) for artifact, receipt in found})
        tokens = [ledger_of(receipt).tokens for _, receipt in found]
        first = found[0][1]
        for _, receipt in found:
            if receipt.inputs["tokenizer"] != first.inputs["tokenizer"]:
                raise IntegrityError(
                    f"{declaration.dataset}: source {declared.called}: {first.partition} and {receipt.partition} "
                    f"were made with different tokenizers. Run it first: dataprep run {declared.dataset}"
                )
        sources.append(
            FoundSource(
                name=declared.called,
                dataset=declared.dataset,
                split=declared.split,
                dtype=TokenBinsFacts.of(first).dtype,
                tokenizer=first.inputs["tokenizer"],
                weight=declared.weight or max(sum(tokens), 1),
                shards=tuple(
                    (str(artifact.partition), receipt.content, count)
                    for (artifact, receipt), count in zip(found, tokens, strict=True)
                ),
                epochs=declared.epochs,
            )
        )
    return sources, documents
