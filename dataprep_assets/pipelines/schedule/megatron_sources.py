"""Inputs of a schedule's Megatron indices: the blend as Megatron describes it, and its documents.

Entry point: `open_inputs`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError, MissingArtifactError
from dataprep_assets.formats import megatron
from dataprep_assets.formats.document_index import TOKEN_BINS
from dataprep_assets.formats.megatron_indices import TrainBlend
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.schedule.declaration import MegatronIndices, ScheduleDeclaration
from dataprep_assets.serving.sampler.megatron_order import SourceSamples
from dataprep_assets.serving.sampler.training_data import TrainingData
from dataprep_assets.serving.sampler.training_schedule import Source

MEGATRON_INDICES = "megatron_indices"
VIEW, COMBINED = "megatron_bins", "combined_bins"


@dataclass(frozen=True, kw_only=True)
class IndexInputs:
    """Inputs of the indices: the schedule, its blend as Megatron describes it, and the samples of each source."""

    data: TrainingData
    blend: TrainBlend
    samples: list[SourceSamples]


def list_prefixes(declaration: ScheduleDeclaration, indices: MegatronIndices, store: ArtifactStore) -> tuple[str, ...]:
    """Return the path prefix of each source's `.bin` and `.idx` files, as passed to the trainer."""
    views = [Artifact(dataset=source.dataset, name=VIEW) for source in declaration.sources]
    locations = [
        # Use the trainer's spelling of the location, but remove a slash at its end, because an extra slash in the
        # prefix changes the names of the files.
        store.location(view) if indices.artifacts is None else f"{indices.artifacts.rstrip('/')}/{view.dataset}/{VIEW}"
        for view in views
    ]
    return tuple(f"{location}/{source.split}" for location, source in zip(locations, declaration.sources, strict=True))


def open_inputs(declaration: ScheduleDeclaration, indices: MegatronIndices, store: ArtifactStore) -> IndexInputs:
    """Return the current schedule with the samples of its sources' views.

    Raises MissingArtifactError for a source without the view; ConfigError if the sources or their shards differ from
    the schedule, or if the schedule packs whole documents.
    """
    data = TrainingData(store, declaration.dataset)
    revision = data.schedule.revisions[-1]
    locations = {
        source.schedule_name: prefix
        for source, prefix in zip(declaration.sources, list_prefixes(declaration, indices, store), strict=True)
    }
    # Also compare the order, because prefixes and weights are paired by position below.
    if [source.name for source in revision.sources] != list(locations):
        raise ConfigError(
            f"{declaration.dataset}: the schedule reads {', '.join(source.name for source in revision.sources)}, but "
            f"the declaration has {', '.join(locations)}. {_describe_revise_command(declaration)}"
        )
    if revision.samples != "windows":
        raise ConfigError(
            f"{declaration.dataset}: `megatron` needs samples of consecutive tokens, but the schedule packs whole "
            "documents. Remove `megatron` or `samples: documents`"
        )
    blend = TrainBlend(
        prefixes=tuple(locations.values()),
        weights=tuple(source.share for source in revision.sources),
        samples=data.sampler.samples,
        sequence_length=revision.sequence_length,
        random_seed=indices.random_seed,
        tokenizer=indices.tokenizer,
    )
    ends = [_read_document_ends(declaration, source, store) for source in revision.sources]
    samples = [
        SourceSamples(data.sampler, source, document_ends)
        for source, document_ends in zip(revision.sources, ends, strict=True)
    ]
    return IndexInputs(data=data, blend=blend, samples=samples)


def _describe_revise_command(declaration: ScheduleDeclaration) -> str:
    return (
        f"To train on the current declaration from step N, run: dataprep schedule {declaration.dataset} --from-step N"
    )


def _read_document_ends(declaration: ScheduleDeclaration, source: Source, store: ArtifactStore) -> NDArray[np.uint64]:
    """Return the document ends of a source's split from Megatron's index.

    Raises ConfigError if the view's shards are not the schedule's shards.
    """
    name = declaration.dataset
    _, shard_contents = find_view(name, source.name, source.dataset, source.split, store)
    if shard_contents != {f"{TOKEN_BINS}/{shard.name}": shard.content for shard in source.shards}:
        raise ConfigError(
            f"{name}: source {source.name}: the view {source.dataset}/{VIEW} was built from different shards than the "
            f"schedule reads. {_describe_revise_command(declaration)}. To rebuild the view, run: "
            f"dataprep run {source.dataset}"
        )
    file = f"{source.split}.idx"
    index = megatron.read_idx(store.local(Artifact(dataset=source.dataset, name=VIEW), [file]) / file)
    return np.cumsum(index.lengths, dtype=np.uint64)


def find_view(
    name: str, view_name: str, dataset: str, split: str, store: ArtifactStore
) -> tuple[Receipt, Mapping[str, str] | None]:
    """Return the receipt of a source's view and the contents of its shards, None if the split was rebuilt later.

    Raises MissingArtifactError if the view or the combined split is missing.
    """
    artifacts = Artifact(dataset=dataset, name=VIEW), Artifact(dataset=dataset, name=COMBINED, partition=split)
    view, combined = (store.receipt(artifact) for artifact in artifacts)
    if view is None or combined is None:
        raise MissingArtifactError(
            f"{name}: source {view_name}: {artifacts[0]} is missing. Add `megatron` to the `views` of the corpus, and "
            f"run: dataprep run {dataset}"
        )
    is_current = (view.recipe or {}).get("upstream", {}).get(f"{COMBINED}/{split}") == combined.content
    return view, (combined.recipe or {}).get("upstream", {}) if is_current else None
