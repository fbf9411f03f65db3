"""Dataset class of training schedules: their artifacts and messages."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from shlex import quote
from typing import ClassVar

from dataprep_assets.engine.artifact.dataset import Dataset, DatasetCounts, MixtureShare
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.card.contents import SplitCounts
from dataprep_assets.engine.yaml.declared_keys import find_nearest
from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.formats.document_index import ENDS
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.pipelines.schedule.declaration import ScheduleDeclaration
from dataprep_assets.pipelines.schedule.megatron_indices import MegatronFacts, build_megatron_spec
from dataprep_assets.pipelines.schedule.megatron_sources import MEGATRON_INDICES
from dataprep_assets.pipelines.schedule.pending_changes import describe_pending_changes, find_pending_changes
from dataprep_assets.pipelines.schedule.schedule_artifact import build_schedule_spec, load_current_schedule
from dataprep_assets.pipelines.schedule.schedule_sources import BLEND, BLEND_SHARDS
from dataprep_assets.pipelines.schedule.summary_fields import find_contradictions, find_missing_answers
from dataprep_assets.pipelines.schedule.training_summary import build_summary_spec
from dataprep_assets.serving.sampler.changes import describe_revisions
from dataprep_assets.serving.sampler.mixture import PLACES
from dataprep_assets.serving.sampler.simulation import format_simulation, simulate_reads
from dataprep_assets.serving.sampler.training_data import SCHEDULE_ARTIFACT, TrainingData, get_documents_folder


class ScheduleDataset(Dataset):
    """The shards and samples that a training run reads at each step, with the documents needed to trace them."""

    component: ClassVar[str] = "TrainingSchedule"
    pipeline: ClassVar[str] = "schedule"
    model: ClassVar[type[ScheduleDeclaration]] = ScheduleDeclaration
    declaration: ScheduleDeclaration

    @cached_property
    def specs(self) -> Sequence[ArtifactSpec]:
        declaration = self.declaration
        specs = [schedule := build_schedule_spec(declaration)]
        if declaration.megatron is not None:
            specs.append(build_megatron_spec(declaration, declaration.megatron, schedule))
        if declaration.training_summary is not None:
            specs.append(build_summary_spec(declaration, declaration.training_summary, schedule))
        return specs

    @property
    def _source_names(self) -> list[str]:
        """Names of the declared sources in the schedule."""
        return [source.schedule_name for source in self.declaration.sources]

    def remarks(self) -> Iterator[Remark]:
        yield from self._ask_for_answers(self._source_names)

    def find_source_remarks(self, source: Dataset) -> Iterator[Remark]:
        # Look for the artifact of token files, which only pretraining blends have.
        if {BLEND, BLEND_SHARDS} & {spec.name for spec in source.specs} == {BLEND}:
            yield Remark(
                keys=("sources",),
                sentence=f"sources: {source.declaration.dataset} is a blend whose stage is not `pretrain`, and the "
                "trainer shuffles its rows itself. Use a corpus, a release, or a blend with `stage: pretrain`",
            )

    def product(self, store: ArtifactStore) -> Artifact:
        return self.declaration.artifact(SCHEDULE_ARTIFACT)

    def describe_state(self, store: ArtifactStore) -> list[str]:
        if store.receipt(self.product(store)) is None:
            return []
        return describe_pending_changes(self.declaration, store, load_current_schedule(self.declaration, store))

    def pending(self, store: ArtifactStore) -> Iterator[Remark]:
        yield from self.find_changes(store)
        summary = self.declaration.training_summary
        if summary is None:
            return
        names = self._source_names
        if store.receipt(self.product(store)) is not None:
            schedule = load_current_schedule(self.declaration, store)
            known_remarks = set(self._ask_for_answers(names))
            # Ask also about sources that only earlier revisions read.
            names += [source.name for revision in schedule.revisions for source in revision.sources]
            yield from (remark for remark in self._ask_for_answers(names) if remark not in known_remarks)
        # A blend's datasets are named `<blend>/<dataset>`, and an answer may be about all of them or about one.
        known_names = {*names, *(name.partition("/")[0] for name in names)}
        for name in summary.sources:
            if name not in known_names and name.partition("/")[0] not in names:
                nearest_name = find_nearest(name, sorted(known_names))
                yield Remark(
                    keys=("training_summary", "sources", name),
                    sentence=f"training_summary.sources.{name}: the schedule has no source of this name"
                    + (f"; did you mean {nearest_name!r}?" if nearest_name else ". Correct or remove it"),
                    hint=True,
                )
        for key, kind in find_contradictions(summary, names).items():
            yield Remark(
                keys=tuple(key.split(".")),
                sentence=f"{key}: no source has `kind: {kind}`. Correct the kind of a source, or remove the answer",
                hint=True,
            )

    def find_changes(self, store: ArtifactStore) -> Iterator[Remark]:
        """Yield a hint for each declared change that is not in the built schedule."""
        if store.receipt(self.product(store)) is not None:
            yield from find_pending_changes(self.declaration, store, load_current_schedule(self.declaration, store))

    def _ask_for_answers(self, names: Sequence[str]) -> Iterator[Remark]:
        """Yield a hint for each missing answer about sources with these names."""
        summary = self.declaration.training_summary
        for key in () if summary is None else find_missing_answers(summary, names):
            yield Remark(
                keys=tuple(key.split(".")), sentence=f"{key}: not declared. Answer it for the summary", hint=True
            )

    def read_last_counts(self, store: ArtifactStore) -> DatasetCounts | None:
        if (receipt := store.receipt(self.product(store))) is None:
            return None
        sizes = {record.path: record.bytes for record in receipt.files}
        sources = TrainingData(store, self.declaration.dataset).schedule.revisions[-1].sources
        return DatasetCounts(
            receipt=receipt,
            splits=[
                SplitCounts(
                    split=source.name,
                    # Derive the count from the file's size, because the file has one uint64 (8 bytes) per document.
                    documents=sum(sizes[f"{get_documents_folder(shard.content)}/{ENDS}"] for shard in source.shards)
                    // 8,
                    tokens=sum(shard.tokens for shard in source.shards),
                )
                for source in sources
            ],
        )

    def read_mixture(self, store: ArtifactStore) -> list[MixtureShare]:
        if store.receipt(self.product(store)) is None:
            return []
        data = TrainingData(store, self.declaration.dataset)
        requested = {source.name: source.share / PLACES for source in data.schedule.revisions[-1].sources}
        return [
            MixtureShare(
                split="",
                name=read.source,
                # A source that a later revision removed is no longer requested.
                requested=requested.get(read.source, 0.0),
                realized=read.share,
                epochs=read.epochs,
                tokens=read.tokens,
            )
            for read in simulate_reads(data.sampler, data.sampler.end)
        ]

    def summary(self, store: ArtifactStore) -> list[str]:
        name = self.declaration.dataset
        if store.receipt(self.product(store)) is None:
            return [f"{name}: no schedule yet"]
        data = TrainingData(store, name)
        return [*describe_revisions(data.schedule), *format_simulation(data.sampler), *self.describe_state(store)]

    def describe_trainers(self, store: ArtifactStore) -> list[str]:
        if store.receipt(self.product(store)) is None:
            return []
        lines = [f"data = TrainingData({store.address!r}, {self.declaration.dataset!r})"]
        indices = self.declaration.artifact(MEGATRON_INDICES)
        if self.declaration.megatron is not None and (receipt := store.receipt(indices)) is not None:
            lines.append(
                f"Megatron-LM: cp -r {quote(store.location(indices))}/. CACHE; "
                f"{MegatronFacts.from_receipt(receipt).arguments} --data-cache-path CACHE"
            )
        return lines
