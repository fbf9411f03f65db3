"""`dataprep_assets.components.ShardRelease`: a corpus as shared npy shards, published for many trainers."""

from collections.abc import Iterator

import dagster as dg
from dagster.components.scaffold.scaffold import scaffold_with

from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.dataset import Step, partition_range
from dataprep_assets.orchestration.scaffold import ShardReleaseScaffolder
from dataprep_assets.pipelines.corpus.component import TokenizedCorpus
from dataprep_assets.pipelines.corpus.manifest import load_manifest
from dataprep_assets.pipelines.release import npy_shards, published
from dataprep_assets.pipelines.release.declaration import ReleaseDeclaration
from dataprep_assets.pipelines.release.layout import partition_key, release_layout
from dataprep_assets.pipelines.release.npy_shards import shard_artifact, stale_shards
from dataprep_assets.pipelines.release.npy_shards_asset import npy_shards_asset
from dataprep_assets.pipelines.release.npy_shards_checks import npy_shards_checks
from dataprep_assets.pipelines.release.published import consumer_code, is_published
from dataprep_assets.pipelines.release.published_shards_asset import published_shards_asset
from dataprep_assets.pipelines.release.published_shards_checks import published_shards_checks
from dataprep_assets.pipelines.release.release_plan_asset import release_plan_asset
from dataprep_assets.serving.release import locate


@scaffold_with(ShardReleaseScaffolder)
class ShardRelease(TokenizedCorpus):
    """A tokenized corpus whose stream is cut into shards of whole samples, published with a manifest."""

    model = ReleaseDeclaration
    declaration: ReleaseDeclaration

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        dataset, release = self.assets, self.declaration
        assets = [release_plan_asset(dataset, release), npy_shards_asset(dataset, release)]
        checks = [npy_shards_checks(dataset, release)]
        if target := release.release.publish:
            assets.append(published_shards_asset(dataset, release, target))
            checks.append(published_shards_checks(dataset, release, target))
        return dg.Definitions.merge(super().build_defs(context), dg.Definitions(assets=assets, asset_checks=checks))

    def steps(self, store: ArtifactStore) -> Iterator[Step]:
        """What a corpus needs, then the plan of the release, its shards, and their publication."""
        yield from super().steps(store)
        yield Step("release plan", [self.assets.key("release_plan")])
        layout = release_layout(self.declaration, store, load_manifest(self.declaration, store))
        shards = layout.partitions
        yield Step(f"{len(shards)} npy shards", [self.assets.key(npy_shards.NAME)], partition_range(shards))
        if self.declaration.release.publish:
            yield Step("publication", [self.assets.key(published.NAME)])

    def stale(self, store: ArtifactStore) -> Iterator[str]:
        behind = list(super().stale(store))
        yield from behind
        if behind:
            return
        layout = release_layout(self.declaration, store, load_manifest(self.declaration, store))
        behind = list(stale_shards(self.declaration, store, layout))
        yield from behind
        target = self.declaration.release.publish
        if target and not behind and not is_published(self.declaration, store, layout, locate(target)):
            yield str(self.declaration.artifact(published.NAME))

    def sweep(self, store: ArtifactStore) -> None:
        super().sweep(store)
        layout = release_layout(self.declaration, store, load_manifest(self.declaration, store))
        artifacts = [shard_artifact(self.declaration, partition) for partition in layout.partitions]
        store.sweep([*artifacts, self.declaration.artifact(published.NAME)])

    @property
    def product(self) -> tuple[str, str | None]:
        if self.declaration.release.publish:
            return published.NAME, None
        return npy_shards.NAME, partition_key(next(iter(self.declaration.splits)), 0)

    def summary(self, store: ArtifactStore) -> list[str]:
        layout = release_layout(self.declaration, store, load_manifest(self.declaration, store))
        lines = super().summary(store)
        for name, split in layout.splits.items():
            tokens = sum(cut.tokens for cut in split.cuts)
            samples = tokens // self.declaration.release.sequence_length
            lines.append(f"{name}: {len(split.cuts):,} npy shards, {tokens:,} tokens, {samples:,} samples")
        if target := self.declaration.release.publish:
            place = locate(target)
            lines += [f"published: {place}", f"train on it: {consumer_code(place)}"]
        return lines
