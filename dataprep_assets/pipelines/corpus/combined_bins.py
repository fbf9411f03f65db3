"""The artifact `<dataset>/combined_bins_<split>`: the shards of a split in manifest order as one file, with `meta.pkl`.

Missing and damaged shards are refused. The store joins the token files (the kernel in a folder, the server in a
bucket); the digest of every shard's range is compared with the shard's receipt, in the same pass that digests the
whole.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.documents.retractions import retracted_ids
from dataprep_assets.errors import IntegrityError, MissingArtifactError
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.execution.progress import Progress
from dataprep_assets.formats import document_ends, flat_bins, meta
from dataprep_assets.formats.document_index import IDS
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.graph.facts import Facts
from dataprep_assets.graph.finding import SHOWN, Finding, Row, judged, ledger_of, name_of, verdict
from dataprep_assets.graph.place import Locate, Span, TokenRange
from dataprep_assets.graph.recipe import Recipe
from dataprep_assets.graph.shown import Shown
from dataprep_assets.graph.spec import ArtifactSpec, BuildRequest, Proof, Proofs
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore, FileRef
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.handle import ArtifactHandle
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.combined_bins_proofs import (
    equals_shards,
    meta_matches,
    sources_complete,
    wrong_totals,
)
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.manifest import Manifest, load_manifest
from dataprep_assets.pipelines.corpus.stream_plan import meta_of
from dataprep_assets.pipelines.corpus.training_proofs import alignment, sampler_dry_run
from dataprep_assets.planning.shard_plan import split_of
from dataprep_assets.stream.eye_test import eye_test
from dataprep_assets.stream.retraction_proofs import made_without
from dataprep_assets.stream.snapshot_files import disk_headroom
from dataprep_assets.stream.stream_index import IndexedShard, StreamIndex
from dataprep_assets.stream.token_shard import ENDS, TOKEN_BINS, TOKENS, TokenBinsFacts
from dataprep_assets.stream.tokenizer import load_bundle

_REBUILD = "Materialize `combined_bins` of this split again"


@judged
def shuffle_quality(receipts: Sequence[Receipt]) -> Finding:
    """How mixed the order is, from the receipts of the shards: runs of documents of one file, and of one chunk.

    A report: any order passes. It fails if the files' documents or tokens do not sum to the shard's.
    """
    defects = []
    for receipt in receipts:
        ledger = ledger_of(receipt)
        for field in ("documents", "tokens"):
            if (total := sum(line[field] for line in receipt.sources)) != getattr(ledger, field):
                defects.append(
                    f"{name_of(receipt)}: {field} of its {len(receipt.sources)} files sum to {total}, the "
                    f"ledger has {getattr(ledger, field)}"
                )
    return _order_report(defects, [line for receipt in receipts for line in receipt.sources])


@judged
def source_run_length(ends: NDArray[np.uint64], sources: Sequence[Mapping[str, Any]]) -> Finding:
    """How long runs of one source are in the combined stream: `sources` lines in order against the document ends.

    A report, as `shuffle_quality`. It fails, naming the file, when a file's last document does not end where the sums
    of tokens say.
    """
    defects = []
    document = tokens = 0
    for line in sources:
        document, tokens = document + line["documents"], tokens + line["tokens"]
        held = int(ends[document - 1]) if 0 < document <= len(ends) else 0 if document == 0 else None
        if held != tokens:
            where = "is beyond the last" if held is None else f"ends at token {held}"
            place = f"{line['file']}: its last document, {document - 1}"
            defects.append(f"{place}, {where}; the sources sum to {tokens} tokens")
            # the first is told: those after it are shifted, too
            break
    if document != len(ends) and not defects:
        defects.append(f"the sources sum to {document} documents, there are {len(ends)} document ends")
    return _order_report(defects, sources)


def _order_report(defects: Sequence[str], sources: Sequence[Mapping[str, Any]]) -> Finding:
    # a file without documents ends no run
    lines = [line for line in sources if line["documents"]]
    files = _runs(lines, lambda line: str(line["file"]))
    chunks = _runs(lines, lambda line: str(PurePosixPath(line["file"]).parent))
    facts: dict[str, int | float | str] = {
        "documents": sum(line["documents"] for line in lines),
        "tokens": sum(line["tokens"] for line in lines),
    }
    for kind, runs in (("file", files), ("chunk", chunks)):
        facts |= {
            f"{kind}_runs": len(runs),
            f"mean_documents_per_{kind}_run": round(sum(r["documents"] for r in runs) / max(len(runs), 1), 2),
            f"mean_tokens_per_{kind}_run": round(sum(r["tokens"] for r in runs) / max(len(runs), 1), 2),
            f"longest_{kind}_run_tokens": max((r["tokens"] for r in runs), default=0),
        }
    table: Sequence[Row] = sorted(chunks, key=lambda r: -int(r["tokens"]))[:SHOWN]
    return verdict(
        defects,
        f"{facts['documents']} documents lie in {len(files)} runs of one file and {len(chunks)} runs of "
        f"one chunk, {facts['mean_tokens_per_file_run']} tokens a file run: shuffle when training.",
        f"Totals and order disagree. {_REBUILD}",
        facts=facts,
        table=[{"defect": d} for d in defects[:SHOWN]] or table,
    )


def _runs(lines: Sequence[Mapping[str, Any]], name: Callable[[Mapping[str, Any]], str]) -> list[dict[str, Any]]:
    """Neighbouring lines of the same source joined: its name, documents and tokens."""
    grouped = ((source, list(members)) for source, members in groupby(lines, name))
    return [
        {"source": source, **{k: sum(m[k] for m in members) for k in ("documents", "tokens")}}
        for source, members in grouped
    ]


VERSION = 3
COMBINED_BINS = "combined_bins"


class CombinedBinsFacts(Facts):
    """Facts of combined bins: those of `meta.pkl`, the number of shards, the token before every document."""

    tokenizer: str
    vocab_size: int
    eos_token_id: int
    eos_token: str
    dtype: str
    tokenizer_sha256: str
    shards: int
    bos_id: int | None


def shard_receipts(
    corpus: CorpusDeclaration, store: ArtifactStore, manifest: Manifest, split: str
) -> list[tuple[Artifact, Receipt]]:
    """Every shard of a split with its receipt, in manifest order.

    Raises MissingArtifactError naming the missing shards: a combined file is never made of only those that exist.
    Raises IntegrityError if a shard was made of other files than the manifest has for it.
    """
    shards = [corpus.artifact(TOKEN_BINS, partition) for partition in manifest.partitions(split)]
    receipts = store.receipts(shards)
    found = [(shard, receipt) for shard, receipt in zip(shards, receipts, strict=True) if receipt is not None]
    missing = [str(shard.partition) for shard, receipt in zip(shards, receipts, strict=True) if receipt is None]
    if missing:
        shown = ", ".join(missing[:8]) + (", …" if len(missing) > 8 else "")
        raise MissingArtifactError(
            f"{corpus.dataset}/{split}: {len(missing)} of {len(shards)} shards are not there: {shown}. "
            "Materialize these partitions of token_bins first"
        )
    for shard, receipt in found:
        # a shard keeps its name when it loses a file
        planned = [entry.relpath for entry in manifest.shard(str(shard.partition))]
        if [line["file"] for line in receipt.sources] != planned:
            raise IntegrityError(
                f"{shard}: made of other files than the manifest has for it now. Materialize this partition of "
                "snapshot and token_bins again"
            )
    _require_same_stream(corpus, split, [receipt for _, receipt in found])
    return found


def _require_same_stream(corpus: CorpusDeclaration, split: str, receipts: Sequence[Receipt]) -> None:
    every = [(receipt, TokenBinsFacts.of(receipt)) for receipt in receipts]
    # what decides how ids are read: shards that differ in it are no one file
    kinds = {
        (f.dtype, str(f.separator_id), str(f.bos_id), f.special_tokens, r.inputs["tokenizer"][:12]) for r, f in every
    }
    if len(kinds) > 1:
        raise IntegrityError(
            f"{corpus.dataset}/{split}: its shards were made with different settings {sorted(kinds)} "
            "(dtype, separator_id, bos_id, special_tokens, tokenizer). Materialize token_bins again: only stale "
            "shards are rebuilt"
        )
    # all may be alike and of an earlier declaration, while `meta.pkl` says what is declared now
    declared = meta_of(corpus)
    for receipt, facts in every:
        if (facts.dtype, receipt.inputs["tokenizer"]) != (declared["dtype"], declared["tokenizer_sha256"]):
            raise IntegrityError(
                f"{corpus.dataset}/{receipt.partition}: made with another tokenizer or dtype than is declared now. "
                "Materialize token_bins again"
            )


def _recipe(
    corpus: CorpusDeclaration, split: str, shards: Sequence[tuple[Artifact, Receipt]], meta_values: Mapping[str, Any]
) -> Recipe:
    settings = dict(meta_values)
    # told as a source that changed, not as a setting
    tokenizer = settings.pop("tokenizer_sha256")
    # a receipt names its shards: if one replaced another with the same bytes, the receipt has to be made again
    made_of = [[str(r.partition), r.content] for _, r in shards]
    return Recipe(
        artifact=corpus.artifact(COMBINED_BINS, split),
        key=digest_value(["combined_bins", VERSION, made_of, meta_values]),
        version=VERSION,
        settings=settings,
        sources={"tokenizer": tokenizer},
        upstream={f"{TOKEN_BINS}/{r.partition}": r.content for _, r in shards},
        ledger=Ledger.total(r.ledger or Ledger() for _, r in shards).of_documents,
    )


def build_combined_bins(
    corpus: CorpusDeclaration, store: ArtifactStore, manifest: Manifest, split: str, progress: Progress | None = None
) -> tuple[Receipt, bool]:
    """Join the shards of a split into `<split>.bin` and `document_ends.bin`, with `meta.pkl` and `meta.json`.

    Args:
        corpus: The dataset.
        store: Where its artifacts are.
        manifest: Which shards the split has, in order.
        split: One of its splits.
        progress: Counts and shows the bytes of the token files; None: nothing is shown.

    Returns:
        The receipt, and whether the combined bins were reused.

    Raises IntegrityError if a shard is damaged, or if the joined size is not that of the tokens.
    """
    shards = shard_receipts(corpus, store, manifest, split)
    meta_values = meta_of(corpus)
    progress = progress or Progress()

    def counted(size: int) -> None:
        progress.add({"source_bytes": size})
        progress.show()

    def write(staged: Path) -> Written:
        parts = [FileRef(shard, r.file(TOKENS)) for shard, r in shards]
        progress.expect(sum(part.record.bytes for part in parts), 1)
        tokens = store.join(staged, f"{split}.bin", parts, counted=counted)
        document_ends.concatenate(_ends(store, shards), staged / ENDS)
        meta.write_meta(staged, meta_values)
        ledger = Ledger.total(r.ledger or Ledger() for _, r in shards)
        ledger.balance(f"{corpus.dataset}/combined_bins/{split}")
        wanted = ledger.tokens * flat_bins.token_dtype(meta_values["dtype"]).itemsize
        if tokens.record.bytes != wanted:
            raise IntegrityError(
                f"{corpus.dataset}/combined_bins/{split}: {tokens.record.bytes} bytes for {ledger.tokens} "
                f"{meta_values['dtype']} tokens, which are {wanted} bytes. Materialize token_bins again"
            )
        return Written(
            inputs={str(r.partition): r.content for _, r in shards},
            # the first shard's BOS is that of all: `shard_receipts` refuses shards that differ
            facts=CombinedBinsFacts(**meta_values, shards=len(shards), bos_id=TokenBinsFacts.of(shards[0][1]).bos_id),
            ledger=ledger.of_documents,
            joined=(tokens,),
        )

    return ensure(_recipe(corpus, split, shards, meta_values), store, write, corpus.verify)


def _ends(store: ArtifactStore, shards: Sequence[tuple[Artifact, Receipt]]) -> Iterator[tuple[Path, int]]:
    """The document ends and the number of tokens of each shard; a local copy stays while it is read."""
    for shard, receipt in shards:
        handle = ArtifactHandle(store, shard, receipt)
        yield handle.path(ENDS), (receipt.ledger or Ledger()).tokens


def combined_bins_spec(corpus: CorpusDeclaration, split: str, *, token_bins: ArtifactSpec) -> ArtifactSpec:
    """The combined bins of a split.

    Args:
        corpus: The dataset.
        split: One of its splits.
        token_bins: The token bins of the split.
    """

    def build(request: BuildRequest) -> list[Outcome]:
        manifest = load_manifest(corpus, request.store)
        return [Outcome.of(*build_combined_bins(corpus, request.store, manifest, split, request.progress))]

    def recipes(store: ArtifactStore, _: Sequence[str | None]) -> list[Recipe]:
        shards = shard_receipts(corpus, store, load_manifest(corpus, store), split)
        return [_recipe(corpus, split, shards, meta_of(corpus))]

    return ArtifactSpec(
        declaration=corpus,
        name=COMBINED_BINS,
        split=split,
        version=VERSION,
        description=f"`{split}.bin`: all shards in manifest order, with `meta.pkl` and its JSON twin.",
        kinds={"numpy", "file"},
        inputs=(token_bins,),
        recipes=recipes,
        build=build,
        metadata=_metadata,
        places=partial(_places, corpus, split),
        proofs=Proofs(proofs=COMBINED_BINS_PROOFS, examine=partial(_examine, corpus, split)),
    )


def current_combined(
    corpus: CorpusDeclaration, store: ArtifactStore, split: str, shards: Mapping[str, Receipt]
) -> Receipt:
    """The receipt of a split's combined bins; raises IntegrityError when they were made of other shards.

    Args:
        corpus: The dataset.
        store: Where its artifacts are.
        split: One of its splits.
        shards: The receipts of the shards of every split, by partition.
    """
    artifact = corpus.artifact(COMBINED_BINS, split)
    receipt = store.require(artifact)
    if dict(receipt.inputs) != {key: shard.content for key, shard in shards.items() if split_of(key) == split}:
        raise IntegrityError(f"{artifact} was made of other shards than are there now. Run the dataset first")
    return receipt


def _places(corpus: CorpusDeclaration, split: str, store: ArtifactStore, shards: Mapping[str, Receipt]) -> Locate:
    receipt = current_combined(corpus, store, split, shards)
    itemsize = flat_bins.token_dtype(CombinedBinsFacts.of(receipt).dtype).itemsize

    def locate(span: Span) -> Iterator[TokenRange]:
        if span.split == split:
            artifact = str(corpus.artifact(COMBINED_BINS, split))
            yield TokenRange(
                artifact=artifact, file=f"{split}.bin", start=span.start, stop=span.stop, itemsize=itemsize
            )

    return locate


def _metadata(_: ArtifactStore, receipt: Receipt) -> Mapping[str, Shown]:
    facts = CombinedBinsFacts.of(receipt)
    return {
        "tokenizer": facts.tokenizer,
        # as texts, because Dagster plots numbers, and these cannot change
        "vocab_size": str(facts.vocab_size),
        "eos_token_id": str(facts.eos_token_id),
        "dtype": facts.dtype,
        "shards": facts.shards,
    }


COMBINED_BINS_PROOFS = (
    Proof("equals_shards", "The file is its shards, in manifest order: digests of every range and of the whole."),
    Proof("totals_match", "Its ledger is the sum of its shards' ledgers."),
    Proof("sources_complete", "Every file of the split exactly once, and none of another split."),
    Proof("meta_matches", "meta.pkl says what the tokenizer and the bytes say, and equals meta.json."),
    Proof("alignment", "Inputs and labels read apart are shifted by one, and document ends fall on separators."),
    Proof(
        "sampler_dry_run",
        "Random batches load; a uniform model's loss is ln(vocab) and a unigram model's is below it. It only warns if "
        "there are fewer than eight blocks of 256 tokens to fit the model on; a split of no token is red.",
    ),
    Proof("eye_test", "Decoded windows near the start and deep in look like text.", blocking=False),
    Proof("no_retracted_document", "No document of its shards is on the retraction list, and they are as they were."),
    Proof("shuffle_quality", "How long runs of one source file are, in documents and tokens.", blocking=False),
    Proof("source_boundaries", "Each source file's documents end where the ledger says they do."),
    Proof("disk_headroom", "Twenty percent of the file's size is free on its disk.", blocking=False),
)


def combined_without(
    corpus: CorpusDeclaration, store: ArtifactStore, split: str, listed: NDArray[np.uint64]
) -> Finding:
    """Whether neither the combined bins of a split nor its present shards hold documents with these ids.

    Args:
        corpus: The dataset.
        store: Where its artifacts are.
        split: One of its splits.
        listed: The ids on the retraction list.
    """
    made_of = shard_receipts(corpus, store, load_manifest(corpus, store), split)
    # without a list the receipts are enough, and no index is fetched
    names = [IDS] if len(listed) else []
    shards = [(store.local(artifact, names), receipt) for artifact, receipt in made_of]
    return made_without(shards, listed, store.require(corpus.artifact(COMBINED_BINS, split)))


def _examine(
    corpus: CorpusDeclaration, split: str, store: ArtifactStore, _: Sequence[str]
) -> Iterator[tuple[str, Finding]]:
    manifest, artifact = load_manifest(corpus, store), corpus.artifact(COMBINED_BINS, split)
    receipt, directory, bundle = store.require(artifact), store.local(artifact), load_bundle(corpus.tokenizer)
    made_of = shard_receipts(corpus, store, manifest, split)
    # the ends alone: tokens are compared by digest, and need not be fetched from a bucket
    shards = [(store.local(a, [ENDS]), r) for a, r in made_of]
    receipts = [r for _, r in shards]
    separator = bundle.separator(corpus.document.separator, corpus.document.special_tokens).id
    facts = CombinedBinsFacts.of(receipt)
    tokens, dtype, seed = directory / f"{split}.bin", facts.dtype, int(receipt.key[:8], 16)
    literal = receipt.ledger.literal_separators if receipt.ledger else 0

    @judged
    def aligned() -> Finding:
        return alignment(
            tokens,
            dtype,
            document_ends.open_ends(directory / ENDS),
            separator_id=separator,
            vocab_size=bundle.vocab_size,
            seed=seed,
            bos_id=facts.bos_id,
            literal_separators=literal,
        )

    @judged
    def boundaries() -> Finding:
        return source_run_length(
            document_ends.open_ends(directory / ENDS), [line for r in receipts for line in r.sources]
        )

    @judged
    def retracted() -> Finding:
        listed = retracted_ids(corpus.retractions, corpus.document.ids(sensitive=corpus.sensitive))
        return combined_without(corpus, store, split, listed)

    # opened only if a row has to be named
    @cache
    def index() -> StreamIndex:
        return StreamIndex({split: [IndexedShard(store, shard, made) for shard, made in made_of]})

    def source_at(token: int) -> str:
        file, row = index().source(*index().by_token(split, None, token))
        return f"{file}: row {row}"

    yield "equals_shards", equals_shards(directory, receipt, shards, split=split)
    yield "totals_match", wrong_totals(receipt, shards)
    yield "sources_complete", sources_complete(receipts, manifest.entries, split)
    yield "meta_matches", meta_matches(directory, bundle, separator, dtype, receipt.facts)
    yield "alignment", aligned()
    yield "sampler_dry_run", sampler_dry_run(tokens, dtype, bundle.vocab_size, seed=seed, source_at=source_at)
    yield "eye_test", eye_test(tokens, directory / ENDS, dtype, bundle, seed=seed, sensitive=corpus.sensitive)
    yield "no_retracted_document", retracted()
    yield "shuffle_quality", shuffle_quality(receipts)
    yield "source_boundaries", boundaries()
    yield "disk_headroom", disk_headroom(directory, receipt.total_bytes // 5, 0.0)
