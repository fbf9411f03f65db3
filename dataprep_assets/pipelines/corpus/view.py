"""Views (`<dataset>/<view>_bins`): the files that each trainer expects, with the same tokens as the combined bins.

A linked view consists of a link to the token file (the same inode, no second copy) and sidecars, so it is built in
seconds, without tokenization. nanoGPT reads the ids as uint16 or uint32, and Megatron reads the same bytes as uint16 or
int32. datatrove and OLMo read the bytes unchanged (docs/formats/README.md#one-stream).

Views in other formats, such as MDS and Parquet, copy the ids. They read the stream once, in blocks, with one thread per
worker, and keep the files that a killed run finished.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field

from dataprep_assets.curation.retractions import read_retracted_ids
from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.losses import Loss
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.artifact.view import (
    REBUILD_VIEW,
    StagedView,
    View,
    catch_errors,
    layout_valid,
    load_view,
    view_recipe,
)
from dataprep_assets.engine.checks.check import Check, Finding, OpenedArtifact, build_verdict, describe_artifact
from dataprep_assets.engine.checks.verdicts import WholeArtifactChecks
from dataprep_assets.engine.trace.place import DocumentSpan, Locate, TokenRange
from dataprep_assets.errors import ConfigError, DataprepError, IntegrityError, count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.integrity.artifacts import Artifact, ArtifactHandle, ArtifactStore, FileRef
from dataprep_assets.integrity.receipt import Ledger, Receipt, find_damage
from dataprep_assets.pipelines.corpus.combined_bins import (
    CombinedBinsFacts,
    check_combined_bins,
    require_current_combined,
)
from dataprep_assets.pipelines.corpus.declaration import COMBINED_BINS, CorpusDeclaration
from dataprep_assets.pipelines.corpus.views import VIEWS
from dataprep_assets.stream.retracted_documents import build_retraction_finding
from dataprep_assets.stream.token_shard import ENDS, TOKEN_BINS


class ViewFacts(Facts):
    """Facts of a view: facts of the stream, tokens per split, and the view's own facts.

    Views of whole samples set `tokens_left_out`: per split, the number of tokens at the end that do not fill a sample.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    view: str
    splits: dict[str, int]
    dtype: str
    tokenizer: str
    vocab_size: int
    eos_token_id: int
    tokens_left_out: dict[str, int] = Field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CombinedSplit:
    """Combined bins of a split, as the input of a view."""

    split: str
    artifact: Artifact
    receipt: Receipt
    facts: CombinedBinsFacts

    @property
    def tokens(self) -> FileRef:
        """The token file."""
        return FileRef(self.artifact, self.receipt.file(f"{self.split}.bin"))

    @property
    def token_count(self) -> int:
        """Number of tokens in the split."""
        return self.receipt.ledger.tokens if self.receipt.ledger else 0

    @property
    def documents(self) -> int:
        """Number of documents in the split."""
        return self.receipt.ledger.documents if self.receipt.ledger else 0

    def open_tokens(self, store: ArtifactStore) -> npt.NDArray[Any]:
        """Return the ids, shape ``(tokens,)``, memory-mapped; download them first if the store is remote."""
        name = self.tokens.record.path
        return flat_bins.open_tokens(store.local(self.artifact, [name]) / name, self.facts.dtype)

    def open_ends(self, store: ArtifactStore) -> npt.NDArray[np.uint64]:
        """Return the document ends, shape ``(documents,)``, memory-mapped."""
        return document_ends.open_ends(store.local(self.artifact, [ENDS]) / ENDS)


@dataclass(frozen=True, kw_only=True)
class ViewWriter(StagedView):
    """A view of a corpus, under construction."""

    corpus: CorpusDeclaration

    def link(self, split: CombinedSplit, name: str) -> None:
        """Link the split's token file under the trainer's name; the bytes are the same, so they are not read again."""
        self.joined.append(self.store.join(self.target, name, [split.tokens], verify=False))

    def local(self, split: CombinedSplit, name: str) -> Path:
        """Return the local path of a small file of the combined bins."""
        return self.store.local(split.artifact, [name]) / name


CopiedBlocks = Iterator[tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]]
"""Blocks of a copy, in order: ids, shape ``(tokens,)``, and the lengths of their documents, empty if not kept."""


@dataclass(frozen=True, kw_only=True)
class MinimumLength:
    """Minimum length of a split for a view.

    Attributes:
        tokens: Minimum number of tokens.
        key: The key of the declaration that determines the minimum.
        refusal: Returns the error message for a shorter split, given the split's name and number of tokens.
    """

    tokens: int
    key: str
    refusal: Callable[[str, int], str]


@dataclass(frozen=True, kw_only=True)
class CorpusView(View):
    """A trainer's format of a corpus; the artifact is `<name>_bins`.

    Attributes:
        write: Writes all splits into a view under construction.
        defects: Yields a sentence for each part of the finished layout that the trainer would reject, given the view's
            directory, its receipt and the splits.
        linked: Returns the path of a linked split's tokens, relative to the view, given the split's name; None for a
            copying view.
        copied: Reads the ids of a copied split, given the view's directory and the split's name.
        places: Opens a copying view and returns the function that locates documents in it.
        trainer: Returns a line with the trainer's settings, or one line per trainer, given the view's location and
            facts.
        calls: Returns the position of a document in a linked view in the reader's own terms, given the view's receipt.
        samples: Returns the end of each sample in the split's stream, in ascending order, given the view and the
            split's name. Views of consecutive samples set it, so that `trace` accepts sample numbers.
        shortest: Returns the minimum length of a split, given the declaration.
        keeps_documents: Whether a copy contains all tokens and documents; if False, it may omit the tail.
    """

    reserved: ClassVar[frozenset[str]] = frozenset(name.removesuffix("_bins") for name in (TOKEN_BINS, COMBINED_BINS))

    write: Callable[[Sequence[CombinedSplit], ViewWriter], None]
    defects: Callable[[Path, Receipt, Sequence[CombinedSplit]], Iterator[str]]
    trainer: Callable[[str, ViewFacts], str | Sequence[str]]
    linked: Callable[[str], str] | None = None
    copied: Callable[[Path, str], CopiedBlocks] | None = None
    places: Callable[[ArtifactHandle], Locate] | None = None
    calls: Callable[[DocumentSpan, Receipt], Mapping[str, int | list[int]]] = lambda _span, _receipt: {}
    samples: Callable[[ArtifactHandle, str], Sequence[int]] | None = None
    shortest: Callable[[CorpusDeclaration], MinimumLength] | None = None
    keeps_documents: bool = False


def load_combined_splits(corpus: CorpusDeclaration, store: ArtifactStore) -> list[CombinedSplit]:
    """Return the combined bins of all splits.

    Raises MissingArtifactError if one is missing, IntegrityError if the splits differ in tokenizer or dtype.
    """
    artifacts = [corpus.artifact(COMBINED_BINS, split) for split in corpus.splits]
    splits = []
    for split, artifact in zip(corpus.splits, artifacts, strict=True):
        receipt = store.require(artifact)
        facts = CombinedBinsFacts.from_receipt(receipt)
        splits.append(CombinedSplit(split=split, artifact=artifact, receipt=receipt, facts=facts))
    if len({(s.facts.dtype, s.facts.tokenizer_sha256) for s in splits}) > 1:
        raise IntegrityError(
            f"{corpus.dataset}: the splits were built with different tokenizers or dtypes. Rebuild combined_bins"
        )
    return splits


def load_corpus_view(name: str) -> CorpusView:
    """Return the view with this name, from this package or another package.

    Raises ConfigError if it is unknown, defined by several packages, or cannot be imported.
    """
    return load_view(VIEWS, name, CorpusView)


def artifact_name(view: str) -> str:
    """Return the name of a view's artifact and asset: `nanogpt_bins`."""
    return f"{view}_bins"


@dataclass(frozen=True)
class OpenedCorpusView(OpenedArtifact):
    """A view, opened for checks, and the combined bins from which it was built."""

    corpus: CorpusDeclaration
    view: CorpusView
    splits: Sequence[CombinedSplit]

    def defects(self) -> Iterator[str]:
        """Yield the defects of the view's layout.

        Linked splits are examined separately, so that an unreadable split does not hide other defects. Copied splits
        are examined together, because they share a card or an index.
        """
        for split_group in [[split] for split in self.splits] if self.view.linked is not None else [self.splits]:
            yield from catch_errors(partial(self.view.defects, self.directory, self.receipt, split_group))


def _open_view(corpus: CorpusDeclaration, view: CorpusView, store: ArtifactStore, _: Sequence[str]) -> OpenedCorpusView:
    artifact = corpus.artifact(artifact_name(view.name))
    return OpenedCorpusView(artifact, store, corpus, view, load_combined_splits(corpus, store)).with_local_files()


def check_tokens(opened_view: OpenedCorpusView) -> Finding:
    """Check that each split's tokens equal the combined bins, and that all files match the receipt.

    Linked tokens are compared by digest. Copied tokens are compared id by id, with document lengths if the view has
    any.
    """
    directory, receipt, view, splits = opened_view.directory, opened_view.receipt, opened_view.view, opened_view.splits
    defects = [
        f"{describe_artifact(receipt)}: {d}"
        for d in (*find_damage(directory, receipt), *_find_false_claims(receipt, view, splits))
    ]
    tokens = sum(s.token_count for s in splits)
    if view.linked is None:
        # Do not compare the ids after a defect, because damaged files may be unreadable.
        if not defects:
            defects += [
                f"{describe_artifact(receipt)}: {d}"
                for s in splits
                for d in _find_id_difference(directory, view, s, opened_view.store)
            ]
        how = "id for id"
    else:
        how = "byte for byte"
        for split in splits:
            view_digest, shard_digest = receipt.file(view.linked(split.split)), split.tokens.record
            if view_digest.sha256 != shard_digest.sha256:
                defects.append(
                    f"{describe_artifact(receipt)}: {view_digest.path} differs from the stream of "
                    f"combined_bins/{split.split}"
                )
    return build_verdict(
        defects,
        f"{count_of(tokens, 'token')} in {count_of(len(splits), 'split')}, {how} identical to the combined bins.",
        REBUILD_VIEW,
        facts={"tokens": tokens},
    )


def _find_false_claims(receipt: Receipt, view: CorpusView, splits: Sequence[CombinedSplit]) -> Iterator[str]:
    """Yield a sentence if the receipt is not for this stream; only the tokenizer's name may differ."""
    facts, stream = ViewFacts.from_receipt(receipt), splits[0].facts
    ledger = Ledger.total(s.receipt.ledger or Ledger() for s in splits)
    expected_claims = (
        view.name,
        {s.split: s.token_count for s in splits},
        stream.dtype,
        stream.eos_token_id,
        ledger.of_documents,
    )
    ledger_documents = (receipt.ledger or Ledger()).of_documents
    if (facts.view, facts.splits, facts.dtype, facts.eos_token_id, ledger_documents) != expected_claims:
        yield "the receipt does not match the stream of the combined bins"


def _find_id_difference(directory: Path, view: CorpusView, split: CombinedSplit, store: ArtifactStore) -> Iterator[str]:
    """Yield the first difference between a copy and the combined bins, if there is one."""
    assert view.copied is not None
    stream_ids, ends = split.open_tokens(store), split.open_ends(store)
    token = document = 0
    try:
        for ids, lengths in view.copied(directory, split.split):
            expected_ids = stream_ids[token : token + len(ids)]
            if len(expected_ids) < len(ids) or (wrong_indices := np.flatnonzero(ids != expected_ids)).size:
                index = len(expected_ids) if len(expected_ids) < len(ids) else int(wrong_indices[0])
                yield f"{split.split}: token {token + index} differs from combined_bins"
                return
            # `lengths` is empty for a format without documents, so nothing is compared.
            document_ends = token + np.cumsum(lengths)
            if not np.array_equal(document_ends, ends[document : document + len(document_ends)].astype(np.int64)):
                yield f"{split.split}: the document ends differ from combined_bins at document {document} or later"
                return
            token, document = token + len(ids), document + len(document_ends)
    except DataprepError as error:
        yield str(error)
        return
    except (ValueError, LookupError, TypeError) as error:  # readers of other packages may raise any of these errors
        yield f"{split.split}: cannot be read ({type(error).__name__}: {error})"
        return
    # Compare the totals only if the format keeps documents, because other formats may omit the tail of the stream.
    if view.keeps_documents and (token, document) != (len(stream_ids), len(ends)):
        yield (
            f"{split.split}: has {count_of(document, 'document')} and {count_of(token, 'token')}, but combined_bins "
            f"has {count_of(len(ends), 'document')} and {count_of(len(stream_ids), 'token')}"
        )


def check_retractions(view: OpenedCorpusView) -> Finding:
    """Check that the view was built from the current combined bins, and that their shards have no listed id.

    `matches_combined_bins` verifies that the view has the same tokens as the combined bins.
    """
    corpus, store, receipt = view.corpus, view.store, view.receipt
    combined = {split.split: split.receipt for split in view.splits}
    removed_ids = read_retracted_ids(corpus.retractions, corpus.document.ids(sensitive=corpus.sensitive))

    def defects() -> Iterator[str]:
        for split, combined_receipt in combined.items():
            if receipt.inputs.get(split) != combined_receipt.content:
                yield f"{describe_artifact(receipt)}: was not built from the current combined bins of {split}"
            # Open shards only if ids are listed, because there may be tens of thousands of shards.
            elif len(removed_ids) and not (finding := check_combined_bins(corpus, store, split, removed_ids)).passed:
                yield finding.summary

    scope = count_of(len(combined), "split")
    return build_retraction_finding(
        defects(), scope, len(removed_ids), "Rebuild token_bins, then combined_bins, then the view"
    )


CHECKS = (
    Check("matches_combined_bins", "The tokens are identical to the tokens in the combined bins.", check_tokens),
    Check("layout_valid", "The sidecar files describe the tokens exactly.", layout_valid),
    Check(
        "no_retracted_document",
        "The view was built from the current combined bins, which contain no removed document.",
        check_retractions,
    ),
)


def trainer_lines(corpus: CorpusDeclaration, store: ArtifactStore) -> Iterator[str]:
    """Yield the lines with trainer settings for each built view."""
    for name in corpus.views:
        artifact = corpus.artifact(artifact_name(name))
        if (receipt := store.receipt(artifact)) is not None:
            facts = ViewFacts.from_receipt(receipt)
            # Use the declared order of the splits, because a receipt sorts its keys.
            splits = {split: facts.splits[split] for split in corpus.splits}
            lines = load_corpus_view(name).trainer(
                store.location(artifact), facts.model_copy(update={"splits": splits})
            )
            yield from [lines] if isinstance(lines, str) else lines


def build_view_spec(corpus: CorpusDeclaration, name: str, *, combined: tuple[ArtifactSpec, ...]) -> ArtifactSpec:
    """Return the spec of a view.

    Args:
        corpus: The dataset.
        name: Name of the view's module.
        combined: The combined bins of every split.
    """
    view = load_corpus_view(name)
    return ArtifactSpec(
        declaration=corpus,
        name=artifact_name(name),
        version=view.version,
        columns=view.columns,
        column_descriptions=view.column_descriptions,
        description=view.description,
        kinds=view.kinds,
        inputs=combined,
        recipes=lambda store, _: [_build_recipe(corpus, view, load_combined_splits(corpus, store))],
        build=lambda request: [Outcome.from_receipt(*build_view(corpus, request.store, name, threads=request.workers))],
        places=partial(_open_locator, corpus, view),
        losses=lambda _, receipts: _find_losses(receipts),
        check_groups=(WholeArtifactChecks(checks=CHECKS, open=partial(_open_view, corpus, view)),),
    )


def _find_losses(receipts: Sequence[Receipt]) -> Iterator[Loss]:
    for receipt in receipts:
        facts = ViewFacts.from_receipt(receipt)
        for split, count in facts.tokens_left_out.items():
            split_tokens = facts.splits[split]
            yield Loss(
                action="left out", reason=f"{facts.view}_tail", count=count, of=split_tokens, unit="token", part=split
            )


def _open_locator(
    corpus: CorpusDeclaration, view: CorpusView, store: ArtifactStore, shards: Mapping[str, Receipt]
) -> Locate:
    """Open a view to locate documents in it; raise IntegrityError if it was built from other shards."""
    handle = ArtifactHandle.from_store(store, corpus.artifact(artifact_name(view.name)))
    combined = {split: require_current_combined(corpus, store, split, shards).content for split in corpus.splits}
    if dict(handle.receipt.inputs) != combined:
        raise IntegrityError(f"{handle.artifact}: was not built from the current combined bins. Run the dataset first")
    if view.places is not None:
        return view.places(handle)
    linked, itemsize = view.linked, flat_bins.token_dtype(ViewFacts.from_receipt(handle.receipt).dtype).itemsize

    def locate(span: DocumentSpan) -> Iterator[TokenRange]:
        if linked is not None:
            file, call = linked(span.split), view.calls(span, handle.receipt)
            artifact = str(handle.artifact)
            yield TokenRange(artifact=artifact, file=file, start=span.start, stop=span.stop, itemsize=itemsize, at=call)

    return locate


def _build_recipe(corpus: CorpusDeclaration, view: CorpusView, splits: Sequence[CombinedSplit]) -> Recipe:
    return view_recipe(
        view,
        corpus.artifact(artifact_name(view.name)),
        corpus,
        content=[[s.split, s.receipt.content] for s in splits],
        upstream={f"{COMBINED_BINS}/{s.split}": s.receipt.content for s in splits},
        ledger=Ledger.total(s.receipt.ledger or Ledger() for s in splits).of_documents,
    )


def build_view(corpus: CorpusDeclaration, store: ArtifactStore, name: str, *, threads: int = 1) -> tuple[Receipt, bool]:
    """Link the combined bins of every split into a view's layout and write its sidecars, or copy their ids into it.

    Args:
        corpus: The dataset.
        store: The store of its artifacts.
        name: Name of the view.
        threads: Number of threads of a copying view.

    Returns:
        The receipt, and whether the view was reused.

    Raises ConfigError if a split is shorter than the view allows.
    """
    view, splits = load_corpus_view(name), load_combined_splits(corpus, store)
    recipe = _build_recipe(corpus, view, splits)

    def write(staged: Path) -> WrittenFiles:
        if view.shortest is not None:
            minimum = view.shortest(corpus)
            for split in splits:
                if split.token_count < minimum.tokens:
                    raise ConfigError(minimum.refusal(split.split, split.token_count))
        writer = ViewWriter(corpus=corpus, store=store, target=staged, threads=threads)
        view.write(splits, writer)
        return WrittenFiles(
            inputs={s.split: s.receipt.content for s in splits},
            # Take these values from the first split, because `load_combined_splits` rejects splits with different
            # tokenizers or dtypes.
            facts=ViewFacts(
                view=name,
                splits={s.split: s.token_count for s in splits},
                **splits[0].facts.model_dump(include={"dtype", "tokenizer", "vocab_size", "eos_token_id"}),
                **writer.facts,
            ),
            ledger=recipe.ledger,
            digests=writer.digests,
            joined=tuple(writer.joined),
        )

    # Let only copying views resume from the files of a killed run, because links are quickly created again.
    return ensure_built(recipe, store, write, corpus.verify, resumes=view.linked is None)
