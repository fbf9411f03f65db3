"""What the data card of a corpus says in addition to its receipts: source, tokenizer, counts by split, Parquet rows."""

from collections.abc import Iterator, Sequence
from functools import partial

from dataprep_assets.engine.artifact.facts import Facts
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.card.card import data_card_spec
from dataprep_assets.engine.card.contents import (
    CardRecords,
    CardSection,
    CardSource,
    CardSubject,
    CardTokenizer,
    Receipts,
)
from dataprep_assets.engine.privacy import privacy_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.combined_bins import COMBINED_BINS
from dataprep_assets.pipelines.corpus.corpus_view import artifact_name, view_named
from dataprep_assets.pipelines.corpus.curation.selection_counts import SELECTION
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.duplicates.duplicates import DuplicatesFacts
from dataprep_assets.pipelines.corpus.duplicates.recall_plot import curve
from dataprep_assets.pipelines.corpus.duplicates.removed_duplicates import DUPLICATES
from dataprep_assets.pipelines.corpus.source.manifest import MANIFEST
from dataprep_assets.pipelines.corpus.source.manifest_facts import ManifestFacts
from dataprep_assets.stream.engine_certificate import told_engine
from dataprep_assets.stream.source import card_source
from dataprep_assets.stream.token_shard import TOKEN_BINS


class _StreamFacts(Facts):
    """The facts about the tokenizer that combined bins and npy shards share."""

    tokenizer: str
    tokenizer_sha256: str
    vocab_size: int
    eos_token: str
    eos_token_id: int


def corpus_card(
    corpus: CorpusDeclaration, specs: Sequence[ArtifactSpec], *, stream: str = COMBINED_BINS
) -> ArtifactSpec:
    """The data card of a corpus, or of a release.

    Args:
        corpus: The dataset.
        specs: Its artifacts.
        stream: Name of the artifacts with the token stream, whose receipts name the tokenizer. They are products
            unless only views are.
    """
    views = {artifact_name(view) for view in corpus.views}
    products = views if views and stream == COMBINED_BINS else {*views, stream}
    return data_card_spec(
        CardSubject(
            declaration=corpus,
            specs=specs,
            products=[spec for spec in specs if spec.name in products],
            counted=[spec for spec in specs if spec.name == TOKEN_BINS],
            selected=[spec for spec in specs if spec.name == SELECTION],
            sources=partial(_sources, corpus),
            tokenizer=partial(_tokenizer, stream),
            records=partial(_records, corpus),
            sections=lambda receipts: list(card_sections(corpus, receipts)),
        )
    )


def card_sections(corpus: CorpusDeclaration, receipts: Receipts) -> Iterator[CardSection]:
    """What was done about duplicates: the declaration, how many went, and the curve by which they are found."""
    if (declared := corpus.duplicates) is None:
        return
    (receipt,) = (every[0] for spec, every in receipts.items() if spec.name == DUPLICATES)
    facts, count = DuplicatesFacts.of(receipt), privacy_of(corpus).count
    gone = sum(facts.removed.values())
    text = f"Of {count(facts.documents)} documents {count(gone)} went, because one that is kept is like them. "
    if declared.kind == "exact":
        text += f"Two are alike if they are equal (`{declared.normalization}`)."
    else:
        text += (
            f"Two are alike if the Jaccard similarity of their runs of {declared.shingle or 5} words is at least "
            f"{declared.similarity:g}, which is verified of each; candidates are those that share one of "
            f"{declared.banding.bands} bands of {declared.banding.rows} MinHash values:\n\n"
            f"{curve(declared.banding, declared.similarity).text}"
        )
    yield CardSection(title="Duplicates", text=text)


def _sources(corpus: CorpusDeclaration, _: ArtifactStore, receipts: Receipts) -> list[CardSource]:
    (manifest,) = (every[0] for spec, every in receipts.items() if spec.name == MANIFEST)
    facts = ManifestFacts.of(manifest)
    source = card_source(corpus.source)
    counts = {"files": facts.files, "bytes": facts.source_bytes, "revision": facts.commit}
    return [CardSource(**{**vars(source), **counts})]


def _tokenizer(stream: str, receipts: Receipts) -> CardTokenizer | None:
    for spec, every in receipts.items():
        if spec.name == stream and every:
            facts = _StreamFacts.of(every[0])
            return CardTokenizer(
                name=facts.tokenizer,
                sha256=facts.tokenizer_sha256,
                vocab_size=facts.vocab_size,
                separator=facts.eos_token,
                separator_id=facts.eos_token_id,
                engine=told_engine(receipts),
            )
    return None


def _records(corpus: CorpusDeclaration, _: Receipts) -> list[CardRecords]:
    return [
        CardRecords(artifact=artifact_name(view), split=split, prefix=rows.prefix(split), columns=rows.columns)
        for view in corpus.views
        if (rows := view_named(view).rows) is not None
        for split in corpus.splits
    ]
