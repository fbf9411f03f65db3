"""Text corpora: the artifacts from the source to verified bins, and their cards and summaries."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from dataprep_assets.engine.artifact.build import Facts
from dataprep_assets.engine.artifact.dataset import Dataset
from dataprep_assets.engine.artifact.spec import ArtifactSpec, Partitions
from dataprep_assets.engine.card.card import build_card_specs
from dataprep_assets.engine.card.contents import (
    CardRecords,
    CardSection,
    CardSource,
    CardSubject,
    CardTokenizer,
    Receipts,
)
from dataprep_assets.engine.privacy import load_privacy
from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.errors import count_of
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Ledger
from dataprep_assets.pipelines.corpus.combined_bins import build_combined_bins_spec
from dataprep_assets.pipelines.corpus.declaration import COMBINED_BINS, CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.manifest import MANIFEST, build_manifest_spec, load_manifest
from dataprep_assets.pipelines.corpus.source.manifest_changes import ManifestFacts
from dataprep_assets.pipelines.corpus.source.snapshot import build_snapshot_spec
from dataprep_assets.pipelines.corpus.source.source_parts import build_corpus_engine, build_corpus_watch
from dataprep_assets.pipelines.corpus.token_bins import build_token_bins_spec, find_retracted_artifacts
from dataprep_assets.pipelines.corpus.view import (
    CorpusView,
    artifact_name,
    build_view_spec,
    load_corpus_view,
    trainer_lines,
)
from dataprep_assets.stream.engine_certificate import (
    build_engine_certificate_spec,
    describe_engine,
    describe_engine_line,
)
from dataprep_assets.stream.source import describe_card_source
from dataprep_assets.stream.token_shard import TOKEN_BINS, TOKENS
from dataprep_assets.stream.tokenizer import describe_boundary, describe_literals
from dataprep_assets.table import align_rows

# Import these modules only for type checking, because commands that only list or compare artifacts do not need them.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dataprep_assets.engine.staleness.estimate import Estimate
    from dataprep_assets.engine.trace.document_table import DocumentTable
    from dataprep_assets.engine.trace.retraction import RetractionResult
    from dataprep_assets.engine.trace.sample import RowSample
    from dataprep_assets.engine.trace.trace import Tracer
    from dataprep_assets.planning.cost import Machine

_MIN_RATE_SECONDS = 30.0
"""Minimum CPU seconds of tokenizing for which a rate is shown."""


class _StreamFacts(Facts):
    """Tokenizer facts that the receipts of combined bins and of npy shards have in common."""

    tokenizer: str
    tokenizer_sha256: str
    vocab_size: int
    eos_token: str
    eos_token_id: int


def describe_corpus_card(
    corpus: CorpusDeclaration, specs: Sequence[ArtifactSpec], *, stream: str = COMBINED_BINS
) -> CardSubject:
    """Return the facts for the data card of a corpus or a release.

    Args:
        corpus: The dataset.
        specs: Its artifacts.
        stream: Name of the artifacts with the token stream, whose receipts name the tokenizer. They are products
            unless the dataset builds views from combined bins.
    """
    views = {artifact_name(view) for view in corpus.views}
    products = views if views and stream == COMBINED_BINS else {*views, stream}
    selected: list[ArtifactSpec] = []
    if corpus.selects:
        from dataprep_assets.pipelines.corpus.curation.selection_counts import SELECTION

        selected = [spec for spec in specs if spec.name == SELECTION]
    return CardSubject(
        declaration=corpus,
        specs=specs,
        products=[spec for spec in specs if spec.name in products],
        counted=[spec for spec in specs if spec.name == TOKEN_BINS],
        selected=selected,
        sources=partial(_list_sources, corpus),
        tokenizer=partial(_find_tokenizer, stream),
        records=partial(_describe_records, corpus),
        sections=lambda receipts: list(build_card_sections(corpus, receipts)),
    )


def build_card_sections(corpus: CorpusDeclaration, receipts: Receipts) -> Iterator[CardSection]:
    """Yield the sections on rewriting, on the recipe and on duplicates, if declared.

    The last has the rule, the number of drops, and the detection curve.
    """
    if corpus.rewriting is not None:
        names = ", ".join(f"`{name}`" for name in corpus.rewriting.names)
        yield CardSection(title="Rewriting", text=f"Texts were changed before tokenization, in this order: {names}.")
    if corpus.recipe is not None:
        from dataprep_assets.curation.filter_recipes.recipe import load_recipe

        yield CardSection(title="Recipe", text=load_recipe(corpus.recipe).to_markdown())
    if (duplicates := corpus.duplicates) is None:
        return
    from dataprep_assets.curation.duplicates.duplicates_files import DuplicatesFacts
    from dataprep_assets.curation.duplicates.recall_plot import draw_recall
    from dataprep_assets.curation.duplicates.removed_file import DUPLICATES

    (receipt,) = (spec_receipts[0] for spec, spec_receipts in receipts.items() if spec.name == DUPLICATES)
    facts, count = DuplicatesFacts.from_receipt(receipt), load_privacy(corpus).public_count
    removed_documents = sum(facts.removed.values())
    text = (
        f"{count(removed_documents)} of {count(facts.documents)} documents were dropped as duplicates of a kept "
        "document. "
    )
    if duplicates.kind == "exact":
        text += f"Duplicates are equal texts (`{duplicates.normalization}`)."
    else:
        text += (
            f"Two documents are near-duplicates if the Jaccard similarity of their {duplicates.shingle or 5}-word "
            f"shingles is at least {duplicates.similarity:g}. The similarity of each pair is verified. Candidate "
            f"pairs agree in one of {duplicates.banding.bands} bands of "
            f"{count_of(duplicates.banding.rows, 'MinHash value')}:\n\n"
            f"{draw_recall(duplicates.banding, duplicates.similarity).text}"
        )
    yield CardSection(title="Duplicates", text=text)


def _list_sources(corpus: CorpusDeclaration, _: ArtifactStore, receipts: Receipts) -> list[CardSource]:
    (manifest,) = (spec_receipts[0] for spec, spec_receipts in receipts.items() if spec.name == MANIFEST)
    facts = ManifestFacts.from_receipt(manifest)
    source = describe_card_source(corpus.source)
    counts = {"files": facts.files, "bytes": facts.source_bytes, "revision": facts.commit}
    return [CardSource(**{**vars(source), **counts})]


def _find_tokenizer(stream: str, receipts: Receipts) -> CardTokenizer | None:
    for spec, spec_receipts in receipts.items():
        if spec.name == stream and spec_receipts:
            facts = _StreamFacts.from_receipt(spec_receipts[0])
            return CardTokenizer(
                name=facts.tokenizer,
                sha256=facts.tokenizer_sha256,
                vocab_size=facts.vocab_size,
                separator=facts.eos_token,
                separator_id=facts.eos_token_id,
                engine=describe_engine(receipts),
            )
    return None


def _describe_records(corpus: CorpusDeclaration, _: Receipts) -> list[CardRecords]:
    return [
        CardRecords(artifact=artifact_name(view), split=split, prefix=rows.prefix(split), columns=rows.columns)
        for view in corpus.views
        if (rows := load_corpus_view(view).rows) is not None
        for split in corpus.splits
    ]


class Corpus(Dataset):
    """A text corpus, from its source to token bins for trainers, with every artifact verified."""

    component: ClassVar[str] = "TokenizedCorpus"
    pipeline: ClassVar[str] = "corpus"
    model: ClassVar[type[CorpusDeclaration]] = CorpusDeclaration
    declaration: CorpusDeclaration

    @cached_property
    def card_subject(self) -> CardSubject:
        return describe_corpus_card(self.declaration, corpus_specs(self.declaration))

    @cached_property
    def specs(self) -> Sequence[ArtifactSpec]:
        return [*self.card_subject.specs, *build_card_specs(self.card_subject)]

    def load_views(self) -> list[CorpusView]:
        return [load_corpus_view(name) for name in self.declaration.views]

    def product(self, store: ArtifactStore) -> Artifact:
        corpus = self.declaration
        if corpus.views:
            return corpus.artifact(artifact_name(corpus.views[0]))
        return corpus.artifact(COMBINED_BINS, next(iter(corpus.splits)))

    def remarks(self) -> Iterable[Remark]:
        from dataprep_assets.pipelines.corpus.remarks import find_corpus_remarks

        return find_corpus_remarks(self.declaration)

    def describe_boundaries(self) -> str:
        policy = self.declaration.document
        return describe_boundary(
            self.declaration.tokenizer,
            separator=policy.separator,
            bos=policy.bos,
            special_tokens=policy.special_tokens,
        )

    def find_trial_remarks(self) -> Iterable[Remark]:
        if not self.declaration.has_table:
            return ()
        from dataprep_assets.curation.trial import find_trial_remarks
        from dataprep_assets.pipelines.corpus.curation.trial import build_trial

        return find_trial_remarks(partial(build_trial, self.declaration))

    def cost(self, store: ArtifactStore, machine: "Machine") -> "Estimate":
        from dataprep_assets.pipelines.corpus.source.cost import estimate_corpus_cost

        return estimate_corpus_cost(self.declaration, store, machine)

    def tracer(self, store: ArtifactStore) -> "Tracer":
        from dataprep_assets.pipelines.corpus.source.source_rows import build_corpus_tracer

        return build_corpus_tracer(self.declaration, store, self.specs)

    def list_sampled_artifacts(self, store: ArtifactStore) -> list[Artifact]:
        return [artifact for spec in self.specs if spec.places is not None for artifact in spec.artifacts(store)]

    def sample(self, store: ArtifactStore, count: int, seed: str) -> "RowSample":
        return self.tracer(store).sample(count, seed)

    def retract(self, store: ArtifactStore, ids: Path, *, strict: bool = False) -> "RetractionResult":
        from dataprep_assets.pipelines.corpus.retract import retract_documents

        return retract_documents(self.declaration, store, ids, strict=strict)

    @property
    def has_rules(self) -> bool:
        return self.declaration.selects

    def documents(self, store: ArtifactStore) -> "DocumentTable":
        from dataprep_assets.pipelines.corpus.curation.corpus_documents import CorpusDocuments

        return CorpusDocuments(self.declaration, store)

    def summary(self, store: ArtifactStore) -> list[str]:
        from dataprep_assets.planning.cost import format_bytes

        corpus, manifest = self.declaration, load_manifest(self.declaration, store)
        rows = [("split", "files", "shards", "documents", "tokens", "size")]
        every_split: list[Ledger] = []
        cpu = 0.0
        for split in corpus.splits:
            receipts = store.receipts([corpus.artifact(TOKEN_BINS, p) for p in manifest.partitions(split)])
            shards = [shard for shard in receipts if shard is not None]
            total = Ledger.total(shard.ledger for shard in shards if shard.ledger)
            every_split.append(total)
            files = f"{sum(e.split == split for e in manifest.entries):,}"
            if len(shards) < len(receipts):
                rows.append((split, files, f"{len(shards):,} of {len(receipts):,}", "", "", ""))
                continue
            cpu += sum(shard.measured["cpu_seconds"] for shard in shards)
            size = format_bytes(sum(shard.file(TOKENS).bytes for shard in shards)).strip()
            rows.append((split, files, f"{len(shards):,}", f"{total.documents:,}", f"{total.tokens:,}", size))
        lines = [*align_rows(rows, right=range(1, len(rows[0])))]
        total = Ledger.total(every_split)
        # Show no rate for a short run, because starting the processes and the engine takes a large part of the run's
        # time.
        rate = f", {total.tokens / cpu:,.0f} tokens/s per core" if cpu >= _MIN_RATE_SECONDS else ""
        lines.append(describe_engine_line(corpus, store) + rate)
        if corpus.recipe is not None:
            from dataprep_assets.curation.filter_recipes.recipe import load_recipe

            lines += load_recipe(corpus.recipe).to_lines()
        if corpus.decontaminate is not None:
            from dataprep_assets.pipelines.corpus.curation.benchmark_coverage import describe_coverage

            lines += describe_coverage(corpus, store)
        return [*lines, *describe_literals(total, corpus.document.special_tokens)]

    def read_lengths(self, store: ArtifactStore, max_bytes: int) -> "NDArray[np.int64] | None":
        from dataprep_assets.stream.stream_index import read_document_lengths

        plan = load_manifest(self.declaration, store).plan
        return read_document_lengths(store, [self.declaration.artifact(TOKEN_BINS, key) for key in plan], max_bytes)

    def describe_trainers(self, store: ArtifactStore) -> list[str]:
        return list(trainer_lines(self.declaration, store))


def corpus_specs(corpus: CorpusDeclaration) -> list[ArtifactSpec]:
    """Return the specs of a corpus, inputs first: manifest, snapshot and certificate, token bins, combined bins, views.

    A document table adds tags and a selection before the token bins, and documents after them. Deduplication adds
    signatures, and builds `duplicates` from the tags and signatures of all splits before the selection.
    """
    shards = {split: _plan_shards(corpus, split) for split in corpus.splits}
    manifest = build_manifest_spec(
        corpus,
        plans=tuple(shards.values()),
        watch=build_corpus_watch(corpus),
        find_retracted=partial(find_retracted_artifacts, corpus),
    )
    certificate = build_engine_certificate_spec(build_corpus_engine(corpus), inputs=(manifest,))
    specs = [manifest, certificate]
    snapshots = {
        split: build_snapshot_spec(corpus, split, partitions=partitions, manifest=manifest)
        for split, partitions in shards.items()
    }
    # Import the modules for tables and duplicates only if the corpus has them, because every command calls this
    # function, and the imports take time.
    tags: dict[str, ArtifactSpec] = {}
    if corpus.has_table:
        from dataprep_assets.pipelines.corpus.curation.tags import build_tags_spec

        tags = {
            split: build_tags_spec(corpus, split, partitions=shards[split], snapshot=snapshot)
            for split, snapshot in snapshots.items()
        }
    duplicates = None
    if corpus.duplicates is not None:
        from dataprep_assets.pipelines.corpus.duplicates.duplicates import build_duplicates_spec
        from dataprep_assets.pipelines.corpus.duplicates.signatures import build_signatures_spec

        signatures = [
            build_signatures_spec(corpus, split, partitions=shards[split], snapshot=snapshot)
            for split, snapshot in snapshots.items()
        ]
        duplicates = build_duplicates_spec(corpus, tags=tuple(tags.values()), signatures=signatures)
        # Add the duplicates after the tags and signatures of all splits, because they are built from all of them, and
        # specs are listed in build order.
        specs += [*snapshots.values(), *tags.values(), *signatures, duplicates]
    token_bins = []
    for split, partitions in shards.items():
        tagged = tags.get(split)
        selection = None
        if tagged is not None and corpus.selects:
            from dataprep_assets.pipelines.corpus.curation.selection import build_selection_spec

            selection = build_selection_spec(corpus, split, partitions=partitions, tags=tagged, duplicates=duplicates)
        bins = build_token_bins_spec(
            corpus,
            split,
            partitions=partitions,
            snapshot=snapshots[split],
            certificate=certificate,
            selection=selection,
        )
        # Skip specs that were already added, because the block for duplicates adds the snapshots and tags of all
        # splits.
        specs += [
            spec
            for spec in (snapshots[split], tagged, selection, bins)
            if spec is not None and not any(spec is other_spec for other_spec in specs)
        ]
        token_bins.append(bins)
        if tagged is not None:
            from dataprep_assets.pipelines.corpus.curation.documents_table import build_documents_spec

            specs.append(
                build_documents_spec(
                    corpus, split, partitions=partitions, tags=tagged, selection=selection, token_bins=bins
                )
            )
    if corpus.combines:
        combined = tuple(
            build_combined_bins_spec(corpus, split, token_bins=bins)
            for split, bins in zip(corpus.splits, token_bins, strict=True)
        )
        specs += [*combined, *(build_view_spec(corpus, view, combined=combined) for view in corpus.views)]
    return specs


def _plan_shards(corpus: CorpusDeclaration, split: str) -> Partitions:
    """Return the shards of a split, which the manifest plans."""
    return Partitions(
        dynamic=f"{corpus.dataset}_{split}_shards",
        keys=lambda store: load_manifest(corpus, store).partitions(split),
    )
