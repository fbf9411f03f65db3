"""`dataprep_assets.components.TokenizedCorpus`: a corpus from source to validated bins, declared in YAML alone."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import ClassVar

import dagster as dg
from dagster.components.scaffold.scaffold import scaffold_with

from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.orchestration.component import DatasetComponent
from dataprep_assets.orchestration.dataset import Step, partition_range
from dataprep_assets.orchestration.scaffold import TokenizedCorpusScaffolder
from dataprep_assets.pipelines.corpus.combined_bins_asset import combined_bins_asset
from dataprep_assets.pipelines.corpus.corpus_asset import CorpusAssets
from dataprep_assets.pipelines.corpus.corpus_checks import corpus_checks
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.engine_certificate import build_engine_certificate, load_certificate
from dataprep_assets.pipelines.corpus.engine_certificate_asset import engine_certificate_asset
from dataprep_assets.pipelines.corpus.manifest import load_manifest
from dataprep_assets.pipelines.corpus.manifest_asset import manifest_asset
from dataprep_assets.pipelines.corpus.snapshot_asset import snapshot_asset
from dataprep_assets.pipelines.corpus.status import stale, sweep_dataset
from dataprep_assets.pipelines.corpus.token_bins import TOKENS
from dataprep_assets.pipelines.corpus.token_bins_asset import token_bins_asset
from dataprep_assets.pipelines.corpus.views import artifact_name
from dataprep_assets.pipelines.corpus.views_asset import view_asset


@scaffold_with(TokenizedCorpusScaffolder)
class TokenizedCorpus(DatasetComponent):
    """A text corpus, from its source to token bins that a trainer reads, every artifact proven."""

    model: ClassVar[type[CorpusDeclaration]] = CorpusDeclaration
    declaration: CorpusDeclaration

    @property
    def corpus(self) -> CorpusDeclaration:
        """The declaration."""
        return self.declaration

    @cached_property
    def assets(self) -> CorpusAssets:
        return CorpusAssets(self.corpus)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        dataset = self.assets
        per_split = [
            make(dataset, split) for split in self.corpus.splits for make in (snapshot_asset, token_bins_asset)
        ]
        if self.corpus.combines:
            per_split += [combined_bins_asset(dataset, split) for split in self.corpus.splits]
        views = [view_asset(dataset, view) for view in self.corpus.views]
        certificate = engine_certificate_asset(
            dataset,
            lambda store: build_engine_certificate(self.corpus, store, load_manifest(self.corpus, store)),
            lambda store: load_certificate(self.corpus, store),
            deps=[dataset.key("manifest")],
        )
        return dg.Definitions(
            assets=[manifest_asset(dataset), certificate, *per_split, *views],
            asset_checks=corpus_checks(dataset),
        )

    def steps(self, store: ArtifactStore) -> Iterator[Step]:
        """The manifest, then each split's shards as one covering range, then the combined bins and the views."""
        key = self.assets.key
        yield Step("manifest and engine certificate", [key("manifest"), key("engine_certificate")])
        manifest = load_manifest(self.corpus, store)
        for split in self.corpus.splits:
            yield self.shard_range(split, manifest.partitions(split))
        if self.corpus.combines:
            yield Step("combined bins", [key("combined_bins", split) for split in self.corpus.splits])
        if self.corpus.views:
            yield Step("views", [key(artifact_name(view)) for view in self.corpus.views])

    def shard_range(self, split: str, shards: Sequence[str]) -> Step:
        """Mirror and tokenize consecutive shards of a split in one run; receipts make the finished ones free."""
        keys = [self.assets.key("snapshot", split), self.assets.key("token_bins", split)]
        return Step(f"{split}: {len(shards)} shards mirrored and tokenized", keys, partition_range(shards))

    def chosen_shards(
        self, store: ArtifactStore, split: str, *, bounds: str | None, count: int | None, index: int | None
    ) -> Sequence[str]:
        """A range of a split's shards: `FIRST...LAST`, or part `index` of `count` even parts of all.

        Raises ConfigError for names that are not there and for an index outside the count.
        """
        if split not in self.corpus.splits:
            raise ConfigError(f"--split {split}: {self.corpus.dataset} has {list(self.corpus.splits)}")
        return chosen(load_manifest(self.corpus, store).partitions(split), bounds=bounds, count=count, index=index)

    def stale(self, store: ArtifactStore) -> Iterator[str]:
        return stale(self.corpus, store)

    def sweep(self, store: ArtifactStore) -> None:
        sweep_dataset(self.corpus, store)

    @property
    def product(self) -> tuple[str, str | None]:
        if self.corpus.views:
            return artifact_name(self.corpus.views[0]), None
        return "combined_bins", next(iter(self.corpus.splits))

    def summary(self, store: ArtifactStore) -> list[str]:
        corpus, manifest = self.corpus, load_manifest(self.corpus, store)
        names = ("files", "shards", "documents", "tokens", "tokens/s/core", "bin")
        lines = [f"{'split':<8}" + "".join(f"{n:>{w}}" for n, w in zip(names, (8, 8, 12, 16, 16, 20), strict=True))]
        for split in corpus.splits:
            every = store.receipts([corpus.artifact("token_bins", p) for p in manifest.partitions(split)])
            shards = [shard for shard in every if shard is not None]
            books = Ledger.total(shard.ledger for shard in shards if shard.ledger)
            cpu = sum(shard.measured["cpu_seconds"] for shard in shards)
            files = sum(e.split == split for e in manifest.entries)
            if len(shards) < len(every):
                lines.append(f"{split:<8}{files:>8,}{len(shards):>8,} of {len(every):,} are there")
                continue
            size = sum(shard.file(TOKENS).bytes for shard in shards)
            lines.append(
                f"{split:<8}{files:>8,}{len(shards):>8,}{books.documents:>12,}{books.tokens:>16,}"
                f"{books.tokens / cpu if cpu else 0:>16,.0f}{size:>16,} B"
            )
        return lines


def chosen(every: Sequence[str], *, bounds: str | None, count: int | None, index: int | None) -> Sequence[str]:
    """A range of partitions: `FIRST...LAST`, or part `index` of `count` even parts of all.

    Raises ConfigError for names that are not among them and for an index outside the count.
    """
    if bounds is not None:
        first, _, last = bounds.partition("...")
        last = last or first
        if first not in every or last not in every or every.index(first) > every.index(last):
            raise ConfigError(f"--shards {bounds}: give FIRST...LAST among {every[0]}...{every[-1]}")
        return every[every.index(first) : every.index(last) + 1]
    if count is None:
        return every
    if index is None or not 0 <= index < count:
        raise ConfigError(f"--process-index {index}: must be at least 0 and below --process-count {count}")
    return every[len(every) * index // count : len(every) * (index + 1) // count]
