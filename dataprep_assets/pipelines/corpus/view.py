"""The artifacts `<dataset>/<view>_bins`: the files that each trainer expects, over the same bytes as the combined bins.

A view that links token files (one inode, no second copy) and adds its sidecars costs seconds and no tokenization:
nanoGPT reads uint16 or uint32 ids, Megatron the same bytes as uint16 or int32, datatrove and OLMo as they are
(docs/formats/README.md#one-stream). Views with formats of their own, MDS and Parquet, copy the ids: one pass over the
stream in blocks, by as many threads as there are workers; files that a killed run finished are kept.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field

from dataprep_assets.curation.retractions import retracted_ids
from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure
from dataprep_assets.engine.artifact.losses import Loss
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.checks.check import Check, Finding, OpenedArtifact, name_of, verdict
from dataprep_assets.engine.checks.verdicts import WholeChecks
from dataprep_assets.engine.trace.place import DocumentSpan, Locate, TokenRange
from dataprep_assets.errors import ConfigError, DataprepError, IntegrityError, count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.formats.croissant import ParquetColumn
from dataprep_assets.integrity.artifacts import Artifact, ArtifactHandle, ArtifactStore, FileRef, JoinedFile
from dataprep_assets.integrity.receipt import Ledger, Receipt, damage
from dataprep_assets.pipelines.corpus.combined_bins import (
    COMBINED_BINS,
    CombinedBinsFacts,
    combined_without,
    current_combined,
)
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.views import VIEWS
from dataprep_assets.stores.files import digest_value
from dataprep_assets.stream.retracted_documents import none_listed
from dataprep_assets.stream.token_shard import ENDS, TOKEN_BINS


class ViewFacts(Facts):
    """Facts of a view's receipt: those of the stream, tokens by split, and further facts of the view itself.

    `tokens_left_out` are the tokens of a split's end that fill no sample, by split; a view of whole samples sets it.
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
    """A split's combined bins as a view uses them."""

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
        """Tokens in the split."""
        return self.receipt.ledger.tokens if self.receipt.ledger else 0

    @property
    def documents(self) -> int:
        """Documents in the split."""
        return self.receipt.ledger.documents if self.receipt.ledger else 0

    def open_tokens(self, store: ArtifactStore) -> npt.NDArray[Any]:
        """The ids, shape ``(tokens,)``, mapped; a bucket's are downloaded first."""
        name = self.tokens.record.path
        return flat_bins.open_tokens(store.local(self.artifact, [name]) / name, self.facts.dtype)

    def open_ends(self, store: ArtifactStore) -> npt.NDArray[np.uint64]:
        """The document ends, shape ``(documents,)``, mapped."""
        return document_ends.open_ends(store.local(self.artifact, [ENDS]) / ENDS)


@dataclass(frozen=True, kw_only=True)
class ViewWriter:
    """A view that is being written into the staging directory `target`, with what its writer leaves for the receipt."""

    corpus: CorpusDeclaration
    store: ArtifactStore
    target: Path
    threads: int
    joined: list[JoinedFile] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)

    def link(self, split: CombinedSplit, name: str) -> None:
        """Link the split's tokens under the trainer's name: the same bytes, which need not be read again."""
        self.joined.append(self.store.join(self.target, name, [split.tokens], verify=False))

    def local(self, split: CombinedSplit, name: str) -> Path:
        """The local path of a small file of the combined bins."""
        return self.store.local(split.artifact, [name]) / name


_NAME = re.compile(r"[a-z][a-z0-9_]*")
Copied = Iterator[tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]]
"""Blocks of a copy in order: ids, shape ``(tokens,)``, and the lengths of the documents in them, if it keeps any."""


@dataclass(frozen=True, kw_only=True)
class MinimumLength:
    """The shortest split that a view can be made of.

    Attributes:
        tokens: How many tokens it has.
        key: The key of the declaration that decides it.
        refusal: Returns the sentence for a split of less, given its name and how many it has.
    """

    tokens: int
    key: str
    refusal: Callable[[str, int], str]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of Parquet in a view, which the data card describes.

    Attributes:
        prefix: Returns how the paths of a split's files begin, given its name.
        columns: Their columns.
    """

    prefix: Callable[[str], str]
    columns: Sequence[ParquetColumn]


@dataclass(frozen=True, kw_only=True)
class CorpusView:
    """One trainer's format.

    Attributes:
        name: Its name in a YAML, in lower case; its artifact is `<name>_bins`.
        description: What it is, on the asset's page.
        write: Writes all splits into a view under construction.
        defects: Yields a sentence for everything in the finished layout that its trainer would not accept, given the
            view's directory, its receipt and the splits.
        linked: Returns the path of a linked split's tokens, relative to the view, given the split's name; None for a
            copying view.
        copied: Reads a copied split's ids back, given the view's directory and the split's name.
        places: Opens a copying view to say where documents are in it.
        trainer: Returns the line with the trainer's settings, given where the view is, and its facts.
        calls: Returns what the reader of a linked view calls a document's place, given the view's receipt.
        samples: Returns where each sample of a split ends in the split's stream, in increasing order, given the view
            and the split's name; for a view of samples that lie one after another, by which `trace` can be asked.
        shortest: Returns the shortest split that it can be made of, given the declaration.
        rows: The rows of Parquet in it.
        keeps_documents: Whether a copy holds every token and every document; else the tail may be left out.
        kinds: Dagster's kinds.
        settings: The declaration's keys that decide the view's bytes in addition to the stream.
        version: Increased when the writer changes a byte.
        columns: Name → type of each column, for a view whose rows have columns.
    """

    name: str
    description: str
    write: Callable[[Sequence[CombinedSplit], ViewWriter], None]
    defects: Callable[[Path, Receipt, Sequence[CombinedSplit]], Iterator[str]]
    trainer: Callable[[str, ViewFacts], str]
    linked: Callable[[str], str] | None = None
    copied: Callable[[Path, str], Copied] | None = None
    places: Callable[[ArtifactHandle], Locate] | None = None
    calls: Callable[[DocumentSpan, Receipt], Mapping[str, int | list[int]]] = lambda _span, _receipt: {}
    samples: Callable[[ArtifactHandle, str], Sequence[int]] | None = None
    shortest: Callable[[CorpusDeclaration], MinimumLength] | None = None
    rows: Rows | None = None
    keeps_documents: bool = False
    kinds: frozenset[str] = frozenset({"numpy"})
    settings: tuple[str, ...] = ()
    version: int = 1
    columns: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or artifact_name(self.name) in (TOKEN_BINS, COMBINED_BINS):
            raise ConfigError(
                f"{self.name!r} is not a valid name for a view: only lower-case letters, digits and '_' are allowed, "
                "and `token` and `combined` are reserved"
            )


def combined_splits(corpus: CorpusDeclaration, store: ArtifactStore) -> list[CombinedSplit]:
    """All splits' combined bins; raises MissingArtifactError naming the first that is not there.

    Raises IntegrityError if the splits differ in tokenizer or dtype.
    """
    artifacts = [corpus.artifact(COMBINED_BINS, split) for split in corpus.splits]
    splits = []
    for split, artifact in zip(corpus.splits, artifacts, strict=True):
        receipt = store.require(artifact)
        facts = CombinedBinsFacts.of(receipt)
        splits.append(CombinedSplit(split=split, artifact=artifact, receipt=receipt, facts=facts))
    if len({(s.facts.dtype, s.facts.tokenizer_sha256) for s in splits}) > 1:
        raise IntegrityError(
            f"{corpus.dataset}: its splits differ in tokenizer or dtype. Materialize combined_bins again"
        )
    return splits


def view_named(name: str) -> CorpusView:
    """The view with this name, of this package or of another.

    Raises ConfigError if there is none, several packages have one, or it cannot be imported.
    """
    extension = VIEWS[name]
    view = extension.load()
    if not isinstance(view, CorpusView):
        raise extension.unfit("is not a CorpusView")
    # both names are used: the declared one for the artifact, the view's own in its key
    if view.name != name:
        raise extension.unfit(f"is called {view.name!r}")
    return view


def artifact_name(view: str) -> str:
    """The artifact, and asset, of a view: `nanogpt_bins`."""
    return f"{view}_bins"


_REMEDY = "Materialize the view again"


@dataclass(frozen=True)
class OpenedView(OpenedArtifact):
    """A view to check, and the combined bins that it is made of."""

    corpus: CorpusDeclaration
    view: CorpusView
    splits: Sequence[CombinedSplit]


def _open(corpus: CorpusDeclaration, view: CorpusView, store: ArtifactStore, _: Sequence[str]) -> OpenedView:
    artifact = corpus.artifact(artifact_name(view.name))
    return OpenedView(artifact, store, corpus, view, combined_splits(corpus, store)).opened()


def matches_combined_bins(opened: OpenedView) -> Finding:
    """Every split's tokens in the view are those of the combined bins; all files match the receipt.

    Linked tokens are compared by digest; copied ones id by id, including document lengths if the view has any.
    """
    directory, receipt, view, splits = opened.directory, opened.receipt, opened.view, opened.splits
    defects = [f"{name_of(receipt)}: {d}" for d in (*damage(directory, receipt), *_other_claims(receipt, view, splits))]
    tokens = sum(s.token_count for s in splits)
    if view.linked is None:
        if not defects:  # files with other bytes than were committed need not be readable
            defects += [
                f"{name_of(receipt)}: {d}" for s in splits for d in _other_ids(directory, view, s, opened.store)
            ]
        how = "id for id"
    else:
        how = "byte for byte"
        for split in splits:
            ours, theirs = receipt.file(view.linked(split.split)), split.tokens.record
            if ours.sha256 != theirs.sha256:
                defects.append(
                    f"{name_of(receipt)}: {ours.path} differs from the stream of combined_bins/{split.split}"
                )
    return verdict(
        defects,
        f"{count_of(len(splits), 'split')}, {count_of(tokens, 'token')}, {how} the combined bins.",
        _REMEDY,
        facts={"tokens": tokens},
    )


def _other_claims(receipt: Receipt, view: CorpusView, splits: Sequence[CombinedSplit]) -> Iterator[str]:
    """Wrong claims of a view's receipt; a tokenizer may have been renamed, which changes no byte."""
    facts, stream = ViewFacts.of(receipt), splits[0].facts
    ledger = Ledger.total(s.receipt.ledger or Ledger() for s in splits)
    expected = (
        view.name,
        {s.split: s.token_count for s in splits},
        stream.dtype,
        stream.eos_token_id,
        ledger.of_documents,
    )
    ledger_documents = (receipt.ledger or Ledger()).of_documents
    if (facts.view, facts.splits, facts.dtype, facts.eos_token_id, ledger_documents) != expected:
        yield "its receipt belongs to a different stream than the combined bins"


def _other_ids(directory: Path, view: CorpusView, split: CombinedSplit, store: ArtifactStore) -> Iterator[str]:
    """The first difference between a copy and the combined bins, if there is one."""
    assert view.copied is not None
    expected, ends = split.open_tokens(store), split.open_ends(store)
    token = document = 0
    try:
        for ids, lengths in view.copied(directory, split.split):
            expected_ids = expected[token : token + len(ids)]
            if len(expected_ids) < len(ids) or (wrong := np.flatnonzero(ids != expected_ids)).size:
                index = len(expected_ids) if len(expected_ids) < len(ids) else int(wrong[0])
                yield f"{split.split}: token {token + index} differs from combined_bins"
                return
            # a format without documents gives no lengths: then no ends are compared
            document_ends = token + np.cumsum(lengths)
            if not np.array_equal(document_ends, ends[document : document + len(document_ends)].astype(np.int64)):
                yield (f"{split.split}: documents from number {document} on end elsewhere than in combined_bins")
                return
            token, document = token + len(ids), document + len(document_ends)
    except DataprepError as error:
        yield str(error)
        return
    except (ValueError, LookupError, TypeError) as error:  # of a reader in another package
        yield f"{split.split}: cannot be read ({type(error).__name__}: {error})"
        return
    # other copies may leave out the tail
    if view.keeps_documents and (token, document) != (len(expected), len(ends)):
        yield (
            f"{split.split}: {count_of(document, 'document')}, {count_of(token, 'token')}, but combined_bins has "
            f"{len(ends)}, {len(expected)}"
        )


def layout_valid(opened: OpenedView) -> Finding:
    """The sidecars describe the token files exactly: every invariant of the format, recomputed."""
    return verdict(
        _defects(opened.directory, opened.receipt, opened.view, opened.splits),
        f"The {opened.view.name} layout is valid for {count_of(len(opened.splits), 'split')}.",
        _REMEDY,
        facts={"files": len(opened.receipt.files)},
    )


def _defects(directory: Path, receipt: Receipt, view: CorpusView, splits: Sequence[CombinedSplit]) -> Iterator[str]:
    """Check linked splits one at a time, so that an unreadable one hides no other; copies share a card or an index."""
    for together in [[split] for split in splits] if view.linked is not None else [splits]:
        try:
            yield from view.defects(directory, receipt, together)
        except (DataprepError, OSError, ValueError, LookupError, TypeError) as error:
            yield str(error)


def no_retracted_document(opened: OpenedView) -> Finding:
    """The view is made of the present combined bins, and none of their shards holds a listed id.

    `matches_combined_bins` verifies that every token of the view is that of the combined bins.
    """
    corpus, store, receipt = opened.corpus, opened.store, opened.receipt
    combined = {split.split: split.receipt for split in opened.splits}
    removed_ids = retracted_ids(corpus.retractions, corpus.document.ids(sensitive=corpus.sensitive))

    def defects() -> Iterator[str]:
        for split, of_split in combined.items():
            if receipt.inputs.get(split) != of_split.content:
                yield f"{name_of(receipt)}: built from other combined bins of {split} than the current ones"
            # without a list no shard is opened: there may be tens of thousands
            elif len(removed_ids) and not (finding := combined_without(corpus, store, split, removed_ids)).passed:
                yield finding.summary

    scope = count_of(len(combined), "split")
    return none_listed(defects(), scope, len(removed_ids), "Materialize token_bins, then combined_bins, then the view")


CHECKS = (
    Check("matches_combined_bins", "The tokens are identical to the combined bins.", matches_combined_bins),
    Check("layout_valid", "The sidecar files describe the tokens exactly.", layout_valid),
    Check(
        "no_retracted_document",
        "The view was built from the current combined bins, which contain no removed document.",
        no_retracted_document,
    ),
)


def trainer_lines(corpus: CorpusDeclaration, store: ArtifactStore) -> Iterator[str]:
    """The lines with trainer settings for each present view."""
    for name in corpus.views:
        artifact = corpus.artifact(artifact_name(name))
        if (receipt := store.receipt(artifact)) is not None:
            facts = ViewFacts.of(receipt)
            splits = {split: facts.splits[split] for split in corpus.splits}  # as declared: a receipt sorts its keys
            yield view_named(name).trainer(store.location(artifact), facts.model_copy(update={"splits": splits}))


def view_spec(corpus: CorpusDeclaration, name: str, *, combined: tuple[ArtifactSpec, ...]) -> ArtifactSpec:
    """One view of a corpus.

    Args:
        corpus: The dataset.
        name: Name of the view's module.
        combined: The combined bins of every split.
    """
    view = view_named(name)
    return ArtifactSpec(
        declaration=corpus,
        name=artifact_name(name),
        version=view.version,
        columns=view.columns,
        description=view.description,
        kinds=view.kinds,
        inputs=combined,
        recipes=lambda store, _: [_recipe(corpus, view, combined_splits(corpus, store))],
        build=lambda request: [Outcome.from_receipt(*build_view(corpus, request.store, name, threads=request.workers))],
        places=partial(_locate, corpus, view),
        losses=lambda _, receipts: _losses(receipts),
        check_groups=(WholeChecks(checks=CHECKS, open=partial(_open, corpus, view)),),
    )


def _losses(receipts: Sequence[Receipt]) -> Iterator[Loss]:
    for receipt in receipts:
        facts = ViewFacts.of(receipt)
        for split, count in facts.tokens_left_out.items():
            split_tokens = facts.splits[split]
            yield Loss(
                action="left out", reason=f"{facts.view}_tail", count=count, of=split_tokens, unit="token", part=split
            )


def _locate(corpus: CorpusDeclaration, view: CorpusView, store: ArtifactStore, shards: Mapping[str, Receipt]) -> Locate:
    """Open a view to say where documents are in it; raises IntegrityError if it was made of other shards."""
    handle = ArtifactHandle.of(store, corpus.artifact(artifact_name(view.name)))
    combined = {split: current_combined(corpus, store, split, shards).content for split in corpus.splits}
    if dict(handle.receipt.inputs) != combined:
        raise IntegrityError(
            f"{handle.artifact} was built from other combined bins than the current ones. Run the dataset first"
        )
    if view.places is not None:
        return view.places(handle)
    linked, itemsize = view.linked, flat_bins.token_dtype(ViewFacts.of(handle.receipt).dtype).itemsize

    def locate(span: DocumentSpan) -> Iterator[TokenRange]:
        if linked is not None:
            file, call = linked(span.split), view.calls(span, handle.receipt)
            artifact = str(handle.artifact)
            yield TokenRange(artifact=artifact, file=file, start=span.start, stop=span.stop, itemsize=itemsize, at=call)

    return locate


def _recipe(corpus: CorpusDeclaration, view: CorpusView, splits: Sequence[CombinedSplit]) -> Recipe:
    settings = {name: getattr(corpus, name) for name in view.settings}
    return Recipe(
        artifact=corpus.artifact(artifact_name(view.name)),
        key=digest_value(["view", view.version, view.name, settings, [[s.split, s.receipt.content] for s in splits]]),
        version=view.version,
        settings=settings,
        upstream={f"{COMBINED_BINS}/{s.split}": s.receipt.content for s in splits},
        ledger=Ledger.total(s.receipt.ledger or Ledger() for s in splits).of_documents,
    )


def build_view(corpus: CorpusDeclaration, store: ArtifactStore, name: str, *, threads: int = 1) -> tuple[Receipt, bool]:
    """Link the combined bins of every split into a view's layout and write its sidecars, or copy their ids into it.

    Args:
        corpus: The dataset.
        store: Where its artifacts are.
        name: Name of the view.
        threads: Number of threads of a copying view.

    Returns:
        The receipt, and whether the view was reused.

    Raises ConfigError for a split that is shorter than the view allows.
    """
    view, splits = view_named(name), combined_splits(corpus, store)
    recipe = _recipe(corpus, view, splits)

    def write(staged: Path) -> WrittenFiles:
        if view.shortest is not None:
            least = view.shortest(corpus)
            for split in splits:
                if split.token_count < least.tokens:
                    raise ConfigError(least.refusal(split.split, split.token_count))
        writer = ViewWriter(corpus=corpus, store=store, target=staged, threads=threads)
        view.write(splits, writer)
        return WrittenFiles(
            inputs={s.split: s.receipt.content for s in splits},
            # those of any split: `combined_splits` refuses splits of another tokenizer or dtype
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

    # links cost nothing and are made anew; of a copy, files that a killed run finished are kept
    return ensure(recipe, store, write, corpus.verify, resumes=view.linked is None)
