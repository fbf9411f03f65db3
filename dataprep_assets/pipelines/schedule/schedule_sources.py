"""Sources of a schedule in the store: their shards and the shards' documents.

The schedule's artifact keeps the documents of every shard that any revision names. Therefore a step's documents can be
traced even after a retraction.

Entry points: `find_sources`, `ShardDocuments`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.checks.check import require_ledger
from dataprep_assets.errors import ConfigError, IntegrityError, MissingArtifactError, count_of
from dataprep_assets.formats.document_index import ENDS, IDS, TOKEN_BINS
from dataprep_assets.integrity.artifacts import Artifact, ArtifactHandle, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.schedule.declaration import ScheduleDeclaration, ScheduleSource
from dataprep_assets.planning.manifest import SHARD_PLAN, read_plan, split_name
from dataprep_assets.serving.sampler.next_revision import CurrentSource, DocumentEnds
from dataprep_assets.serving.sampler.packs import open_packs, pack_shard
from dataprep_assets.serving.sampler.source_order import PackTable
from dataprep_assets.serving.sampler.training_data import SCHEDULE_ARTIFACT, get_documents_folder, get_packs_file
from dataprep_assets.serving.sampler.training_schedule import SourceShard
from dataprep_assets.stream.token_shard import TokenBinsFacts

# Repeat the names of a blend's artifacts, because this package must not import the blend package.
BLEND, BLEND_SHARDS, _BLEND_PLAN, _RUNS = "blend", "indexed_bins", "blend_plan", "runs"


@dataclass(frozen=True, kw_only=True)
class SourceSelection:
    """Source of the schedule: its name in the schedule, its share of the declared weight, and its shards."""

    schedule_name: str
    share: float
    shards: Sequence[Artifact]


def select_sources(store: ArtifactStore, name: str, source: ScheduleSource) -> list[SourceSelection]:
    """Select the shards of a declared source.

    A corpus or a release gives one selection, with the split's shards in the order of the plan. A blend gives one
    selection per dataset.

    Args:
        store: Store of the artifacts.
        name: Name of the schedule, for messages.
        source: The declared source.
    Raises MissingArtifactError, with the dataset's name, if the dataset was not built; ConfigError for an unknown split
    and for a blend of a stage other than `pretrain`.
    """
    if source.blend:
        return _select_blend_sources(store, name, source)
    manifest = Artifact(dataset=source.dataset, name="manifest")
    if store.receipt(manifest) is None:
        raise _build_not_built_error(name, source.dataset, str(manifest))
    plan = read_plan(store.local(manifest, [SHARD_PLAN]))
    keys = [key for key in plan if split_name(key) == source.split]
    if not keys:
        raise _build_split_error(name, source, {split_name(key) for key in plan})
    shards = [Artifact(dataset=source.dataset, name=TOKEN_BINS, partition=key) for key in keys]
    return [SourceSelection(schedule_name=source.schedule_name, share=1.0, shards=shards)]


def _select_blend_sources(store: ArtifactStore, name: str, source: ScheduleSource) -> list[SourceSelection]:
    plan_receipt = store.receipt(Artifact(dataset=source.dataset, name=_BLEND_PLAN))
    if plan_receipt is None:
        raise _build_not_built_error(name, source.dataset, _BLEND_PLAN)
    if (stage := plan_receipt.facts["stage"]) != "pretrain":
        raise ConfigError(
            f"{name}: source {source.dataset} is a blend with `stage: {stage}`, whose rows the trainer shuffles "
            "itself. Use a corpus, a release, or a blend with `stage: pretrain`"
        )
    # Select the run by the plan's hash, because runs of earlier plans may also be stored.
    run = Artifact(dataset=source.dataset, name=_RUNS, partition=plan_receipt.facts["run_hash"])
    if (run_receipt := store.receipt(run)) is None:
        raise _build_not_built_error(name, source.dataset, str(run))
    if not (used_shards := run_receipt.facts["used"].get(source.split)):
        raise _build_split_error(name, source, {split for split, shards in run_receipt.facts["used"].items() if shards})
    share_by_dataset = {
        row["name"]: row["requested"] for row in run_receipt.facts["realised"] if row["split"] == source.split
    }
    shards: dict[str, list[Artifact]] = {}
    for key in used_shards:
        artifact = Artifact(dataset=source.dataset, name=BLEND_SHARDS, partition=key)
        shards.setdefault(split_name(key), []).append(artifact)
    return [
        SourceSelection(schedule_name=f"{source.schedule_name}/{part}", share=share_by_dataset[part], shards=artifacts)
        for part, artifacts in shards.items()
    ]


def _build_not_built_error(name: str, dataset: str, noun: str) -> MissingArtifactError:
    return MissingArtifactError(f"{name}: source {dataset}: not built yet: {noun}. Run: dataprep run {dataset}")


def _build_split_error(name: str, source: ScheduleSource, available_splits: Collection[str]) -> ConfigError:
    names = ", ".join(sorted(available_splits))
    return ConfigError(f"{name}: source {source.dataset}: unknown split {source.split!r}. Available: {names}")


def _require_receipts(store: ArtifactStore, name: str, part: SourceSelection) -> list[tuple[Artifact, Receipt]]:
    """Return the shards with their receipts; raise MissingArtifactError with the first missing shard."""
    pairs = list(zip(part.shards, store.receipts(part.shards), strict=True))
    dataset = part.shards[0].dataset
    if missing := [str(artifact.partition) for artifact, receipt in pairs if receipt is None]:
        raise _build_not_built_error(
            name, dataset, f"{len(missing)} of {count_of(len(pairs), 'shard')}, first {missing[0]}"
        )
    return [(artifact, receipt) for artifact, receipt in pairs if receipt is not None]


@dataclass(frozen=True)
class ShardDocuments:
    """The documents and packs of shards, by the shards' content.

    The documents of a shard in `found` are read from the shard. All other documents are read from the copies in the
    schedule's current artifact.
    """

    store: ArtifactStore
    name: str
    found: dict[str, tuple[Artifact, Receipt]] = field(default_factory=dict)
    # Cache the packs by content and sample length, because revisions with the same sample length use the same packs.
    _packs: dict[tuple[str, int], PackTable] = field(default_factory=dict)

    @property
    def schedule_artifact(self) -> ArtifactHandle | None:
        """Current artifact of the schedule; None if it was not built."""
        artifact = Artifact(dataset=self.name, name=SCHEDULE_ARTIFACT)
        return None if self.store.receipt(artifact) is None else ArtifactHandle.from_store(self.store, artifact)

    def __call__(self, content: str) -> DocumentEnds:
        """Return the document ends and ids of a shard."""
        if content in self.found:
            artifact, receipt = self.found[content]
            handle, folder = ArtifactHandle(self.store, artifact, receipt), ""
        else:
            handle, folder = self.require_stored_artifact(content), f"{get_documents_folder(content)}/"
        names = {record.path for record in handle.files}
        ids = _open_numbers(handle, f"{folder}{IDS}") if f"{folder}{IDS}" in names else None
        return DocumentEnds(ends=_open_numbers(handle, f"{folder}{ENDS}"), ids=ids)

    def require_stored_artifact(self, content: str) -> ArtifactHandle:
        """Return the schedule's artifact; raise IntegrityError if it has no copy of this shard's documents."""
        handle = self.schedule_artifact
        if handle is None or not any(record.path.startswith(get_documents_folder(content)) for record in handle.files):
            raise IntegrityError(
                f"{self.name}: the documents of the shard {content[:12]}, which earlier steps read, were stored only "
                "in the artifact of the schedule, and are missing. Restore that artifact from a copy"
            )
        return handle

    def packs(self, shard: SourceShard, length: int) -> PackTable:
        """Return the packs of a shard for a sample length, from the schedule's artifact if it contains them."""
        key = (shard.content, length)
        if key not in self._packs:
            name, handle = get_packs_file(*key), self.schedule_artifact
            if handle is not None and any(record.path == name for record in handle.files):
                self._packs[key] = open_packs(handle.path(name))
            else:
                self._packs[key] = pack_shard(self(shard.content).ends, length)
        return self._packs[key]


def _open_numbers(handle: ArtifactHandle, name: str) -> NDArray[np.uint64]:
    return np.asarray(handle.numbers(name, "uint64")[:], np.uint64)


def find_sources(
    declaration: ScheduleDeclaration, store: ArtifactStore
) -> tuple[Sequence[CurrentSource], ShardDocuments]:
    """Return the current state of the declared sources, and the documents of their shards.

    Raises MissingArtifactError for a source that was not built.
    """
    sources, documents = [], ShardDocuments(store, declaration.dataset)
    for source in declaration.sources:
        parts = [
            (part, _require_receipts(store, declaration.dataset, part))
            for part in select_sources(store, declaration.dataset, source)
        ]
        all_shards = [pair for _, pairs in parts for pair in pairs]
        documents.found.update({receipt.content: (artifact, receipt) for artifact, receipt in all_shards})
        tokens = {artifact: require_ledger(receipt).tokens for artifact, receipt in all_shards}
        first_receipt = all_shards[0][1]
        # Compare only shards of the same source here, because the code that creates a revision compares the sources
        # with each other.
        for _, receipt in all_shards:
            if receipt.inputs["tokenizer"] != first_receipt.inputs["tokenizer"]:
                raise IntegrityError(
                    f"{declaration.dataset}: source {source.schedule_name}: {first_receipt.partition} and "
                    f"{receipt.partition} were built with different tokenizers. Run: dataprep run {source.dataset}"
                )
        # Use a weight of at least 1, because weights must be positive, and a source may have 0 tokens.
        weight = source.weight or max(sum(tokens.values()), 1)
        sources += [
            CurrentSource(
                name=part.schedule_name,
                dataset=source.dataset,
                split=source.split,
                dtype=TokenBinsFacts.from_receipt(first_receipt).dtype,
                tokenizer=first_receipt.inputs["tokenizer"],
                weight=weight * part.share,
                shards=tuple(
                    (str(artifact.partition), receipt.content, tokens[artifact]) for artifact, receipt in pairs
                ),
                epochs=source.epochs,
                artifact=pairs[0][0].name,
            )
            for part, pairs in parts
        ]
    return sources, documents
