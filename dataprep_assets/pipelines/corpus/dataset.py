"""A text corpus: its artifacts from the source to validated bins, and what a person is told of them."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from dataprep_assets.engine.artifact.dataset import Dataset
from dataprep_assets.engine.artifact.spec import ArtifactSpec, Partitions
from dataprep_assets.engine.staleness.estimate import Estimate
from dataprep_assets.engine.trace.asked_documents import AskedDocuments
from dataprep_assets.engine.trace.retraction import Retracted
from dataprep_assets.engine.trace.trace import Tracer
from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.pipelines.corpus.card import corpus_card
from dataprep_assets.pipelines.corpus.combined_bins import COMBINED_BINS, combined_bins_spec
from dataprep_assets.pipelines.corpus.corpus_sample import corpus_engine
from dataprep_assets.pipelines.corpus.corpus_view import artifact_name
from dataprep_assets.pipelines.corpus.curation.asked_documents import CorpusDocuments
from dataprep_assets.pipelines.corpus.curation.benchmark_coverage import coverage_lines
from dataprep_assets.pipelines.corpus.curation.documents_table import documents_spec
from dataprep_assets.pipelines.corpus.curation.selection import selection_spec
from dataprep_assets.pipelines.corpus.curation.tags import tags_spec
from dataprep_assets.pipelines.corpus.curation.trial import tried
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.duplicates.duplicates import duplicates_spec
from dataprep_assets.pipelines.corpus.duplicates.signatures import signatures_spec
from dataprep_assets.pipelines.corpus.remarks import corpus_remarks
from dataprep_assets.pipelines.corpus.retract import retract
from dataprep_assets.pipelines.corpus.source.cost import corpus_cost
from dataprep_assets.pipelines.corpus.source.manifest import load_manifest, manifest_spec
from dataprep_assets.pipelines.corpus.source.snapshot import snapshot_spec
from dataprep_assets.pipelines.corpus.source.source_rows import corpus_tracer
from dataprep_assets.pipelines.corpus.source.source_watch import corpus_watch
from dataprep_assets.pipelines.corpus.token_bins import token_bins_spec
from dataprep_assets.pipelines.corpus.view import trainer_lines, view_spec
from dataprep_assets.planning.cost import Machine
from dataprep_assets.stream.engine_certificate import engine_certificate_spec, engine_line
from dataprep_assets.stream.rendered_text import literal_lines
from dataprep_assets.stream.token_shard import TOKEN_BINS, TOKENS


class Corpus(Dataset):
    """A text corpus, from its source to token bins that a trainer reads, every artifact proven."""

    component: ClassVar[str] = "TokenizedCorpus"
    pipeline: ClassVar[str] = "corpus"
    model: ClassVar[type[CorpusDeclaration]] = CorpusDeclaration
    declaration: CorpusDeclaration

    @cached_property
    def specs(self) -> Sequence[ArtifactSpec]:
        specs = corpus_specs(self.declaration)
        return [*specs, corpus_card(self.declaration, specs)]

    def product(self, store: ArtifactStore) -> Artifact:
        corpus = self.declaration
        if corpus.views:
            return corpus.artifact(artifact_name(corpus.views[0]))
        return corpus.artifact(COMBINED_BINS, next(iter(corpus.splits)))

    def remarks(self) -> Iterable[Remark]:
        return corpus_remarks(self.declaration)

    def tried(self) -> Iterable[Remark]:
        return tried(self.declaration)

    def cost(self, store: ArtifactStore, machine: Machine) -> Estimate:
        return corpus_cost(self.declaration, store, machine)

    def tracer(self, store: ArtifactStore) -> Tracer:
        return corpus_tracer(self.declaration, store, self.specs)

    def retract(self, store: ArtifactStore, ids: Path, *, strict: bool = False) -> Retracted:
        return retract(self.declaration, store, ids, strict=strict)

    @property
    def has_rules(self) -> bool:
        return self.declaration.selects

    def documents(self, store: ArtifactStore) -> AskedDocuments:
        return CorpusDocuments(self.declaration, store)

    def summary(self, store: ArtifactStore) -> list[str]:
        corpus, manifest = self.declaration, load_manifest(self.declaration, store)
        names = ("files", "shards", "documents", "tokens", "tokens/s/core", "bin")
        lines = [f"{'split':<8}" + "".join(f"{n:>{w}}" for n, w in zip(names, (8, 8, 12, 16, 16, 20), strict=True))]
        every_split: list[Ledger] = []
        for split in corpus.splits:
            every = store.receipts([corpus.artifact(TOKEN_BINS, p) for p in manifest.partitions(split)])
            shards = [shard for shard in every if shard is not None]
            total = Ledger.total(shard.ledger for shard in shards if shard.ledger)
            every_split.append(total)
            cpu = sum(shard.measured["cpu_seconds"] for shard in shards)
            files = sum(e.split == split for e in manifest.entries)
            if len(shards) < len(every):
                there = f"{files:>8,}{len(shards):>8,} of {len(every):,}"
                lines.append(f"{split:<8}{there} are there")
                continue
            size = sum(shard.file(TOKENS).bytes for shard in shards)
            lines.append(
                f"{split:<8}{files:>8,}{len(shards):>8,}{total.documents:>12,}{total.tokens:>16,}"
                f"{total.tokens / cpu if cpu else 0:>16,.0f}{size:>16,} B"
            )
        lines += [engine_line(corpus, store), *coverage_lines(corpus, store)]
        lines += literal_lines(Ledger.total(every_split), corpus.document.special_tokens)
        return [*lines, *(f"for the trainer: {line}" for line in trainer_lines(corpus, store))]


def corpus_specs(corpus: CorpusDeclaration) -> list[ArtifactSpec]:
    """The graph of a corpus: manifest → snapshot and certificate → token bins → combined bins → views.

    With a table of documents: snapshot → tags → selection → token bins → documents, too. With duplicates: tags and
    signatures of all splits → duplicates → selection.
    """
    shards = {split: _shards(corpus, split) for split in corpus.splits}
    manifest = manifest_spec(corpus, plans=tuple(shards.values()), watch=corpus_watch(corpus))
    certificate = engine_certificate_spec(corpus_engine(corpus), inputs=(manifest,))
    specs = [manifest, certificate]
    snapshots = {
        split: snapshot_spec(corpus, split, partitions=partitions, manifest=manifest)
        for split, partitions in shards.items()
    }
    tags = {
        split: tags_spec(corpus, split, partitions=shards[split], snapshot=snapshot)
        for split, snapshot in snapshots.items()
        if corpus.has_table
    }
    duplicates = None
    if corpus.duplicates is not None:
        signatures = [
            signatures_spec(corpus, split, partitions=shards[split], snapshot=snapshot)
            for split, snapshot in snapshots.items()
        ]
        duplicates = duplicates_spec(corpus, tags=tuple(tags.values()), signatures=signatures)
        # the list is the order in which a dataset is made, and duplicates need the tags and signatures of all splits
        specs += [*snapshots.values(), *tags.values(), *signatures, duplicates]
    token_bins = []
    for split, partitions in shards.items():
        tagged = tags.get(split)
        selection = None
        if tagged is not None and corpus.selects:
            selection = selection_spec(corpus, split, partitions=partitions, tags=tagged, duplicates=duplicates)
        bins = token_bins_spec(
            corpus,
            split,
            partitions=partitions,
            snapshot=snapshots[split],
            certificate=certificate,
            selection=selection,
        )
        # with duplicates, snapshots and tags are in the list already
        specs += [
            spec
            for spec in (snapshots[split], tagged, selection, bins)
            if spec is not None and not any(spec is one for one in specs)
        ]
        token_bins.append(bins)
        if tagged is not None:
            specs.append(
                documents_spec(corpus, split, partitions=partitions, tags=tagged, selection=selection, token_bins=bins)
            )
    if corpus.combines:
        combined = tuple(
            combined_bins_spec(corpus, split, token_bins=bins)
            for split, bins in zip(corpus.splits, token_bins, strict=True)
        )
        specs += [*combined, *(view_spec(corpus, view, combined=combined) for view in corpus.views)]
    return specs


def _shards(corpus: CorpusDeclaration, split: str) -> Partitions:
    """The shards of a split, which the manifest plans."""
    return Partitions(
        dynamic=f"{corpus.dataset}_{split}_shards",
        keys=lambda store: load_manifest(corpus, store).partitions(split),
    )
