"""A corpus as shared npy shards, published for many trainers: its artifacts, and what a person is told of them."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import ClassVar

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.staleness.estimate import Estimate
from dataprep_assets.engine.trace.trace import Tracer
from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.card import corpus_card
from dataprep_assets.pipelines.corpus.dataset import Corpus, corpus_specs
from dataprep_assets.pipelines.release.cost import release_cost
from dataprep_assets.pipelines.release.declaration import ReleaseDeclaration
from dataprep_assets.pipelines.release.layout import partition_key, release_layout
from dataprep_assets.pipelines.release.npy_shard import NPY_SHARDS, shard_artifact
from dataprep_assets.pipelines.release.npy_shards import npy_shards_spec, shard_partitions
from dataprep_assets.pipelines.release.npy_trace import release_tracer
from dataprep_assets.pipelines.release.published import consumer_code
from dataprep_assets.pipelines.release.published_shards import PUBLISHED_SHARDS, published_shards_spec
from dataprep_assets.pipelines.release.release_plan import release_plan_spec
from dataprep_assets.planning.cost import Machine
from dataprep_assets.plural import count_of
from dataprep_assets.serving.window.release import locate
from dataprep_assets.stores.connect import missing_library
from dataprep_assets.stream.token_shard import TOKEN_BINS


class ReleaseDataset(Corpus):
    """A tokenized corpus whose stream is cut into shards of whole samples, published with a manifest."""

    component: ClassVar[str] = "ShardRelease"
    pipeline: ClassVar[str] = "release"
    model: ClassVar[type[ReleaseDeclaration]] = ReleaseDeclaration
    declaration: ReleaseDeclaration

    @cached_property
    def specs(self) -> Sequence[ArtifactSpec]:
        """The graph of a release: that of its corpus, then token bins → plan → npy shards → publication."""
        release, corpus = self.declaration, corpus_specs(self.declaration)
        partitions = shard_partitions(release)
        token_bins = tuple(spec for spec in corpus if spec.name == TOKEN_BINS)
        plan = release_plan_spec(release, token_bins=token_bins, plans=partitions)
        shards = npy_shards_spec(release, partitions=partitions, plan=plan)
        specs = [*corpus, plan, shards]
        if target := release.release.publish:
            specs.append(published_shards_spec(release, target, shards=shards))
        return [*specs, corpus_card(release, specs, stream=NPY_SHARDS)]

    def remarks(self) -> Iterable[Remark]:
        yield from super().remarks()
        if missing := missing_library(self.declaration.release.publish or ""):
            yield Remark(keys=("release", "publish"), sentence=f"release.publish: {missing}")

    def product(self, store: ArtifactStore) -> Artifact:
        release = self.declaration
        if release.release.publish:
            return release.artifact(PUBLISHED_SHARDS)
        return shard_artifact(release, partition_key(next(iter(release.splits)), 0))

    def cost(self, store: ArtifactStore, machine: Machine) -> Estimate:
        return release_cost(self.declaration, store, machine)

    def tracer(self, store: ArtifactStore) -> Tracer:
        return release_tracer(self.declaration, store, self.specs)

    def summary(self, store: ArtifactStore) -> list[str]:
        release, lines = self.declaration, super().summary(store)
        for name, split in release_layout(release, store).splits.items():
            tokens = sum(cut.tokens for cut in split.cuts)
            samples = tokens // release.release.sequence_length
            lines.append(f"{name}: {count_of(len(split.cuts), 'npy shard')}, {tokens:,} tokens, {samples:,} samples")
        if target := release.release.publish:
            place = locate(target)
            lines += [f"published: {place}", f"train on it: {consumer_code(place)}"]
        return lines
