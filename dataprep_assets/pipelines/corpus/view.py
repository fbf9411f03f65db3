"""The artifacts `<dataset>/<view>_bins`: what each trainer expects to find, over the very bytes of the combined bins.

A view that links token files (one inode, no second copy) and adds its sidecars costs seconds and no tokenization:
nanoGPT reads uint16 or uint32 ids, Megatron the same bytes as uint16 or int32, datatrove and OLMo as they are
(docs/formats/README.md#one-stream). Views that are formats of their own, MDS and Parquet, copy the ids: one pass over
the stream in blocks, by as many threads as there are workers; files that a killed run finished are kept.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep_assets.errors import IntegrityError
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.graph.finding import Finding
from dataprep_assets.graph.place import Locate, Place, Span
from dataprep_assets.graph.recipe import Recipe
from dataprep_assets.graph.spec import ArtifactSpec, Proof, Proofs, RunStep
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore, Joined, Part
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.handle import ArtifactHandle
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.combined_bins import COMBINED_BINS, CombinedBinsFacts, current_combined
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.token_shard import ENDS
from dataprep_assets.pipelines.corpus.view_facts import ViewFacts
from dataprep_assets.pipelines.corpus.view_proofs import layout_valid, same_stream
from dataprep_assets.pipelines.corpus.view_retraction_proofs import no_retracted_document

__all__ = [
    "CombinedSplit",
    "CorpusView",
    "UnderConstruction",
    "ViewFacts",
    "artifact_name",
    "build_view",
    "combined_splits",
    "trainer_lines",
    "view_named",
    "view_spec",
]


@dataclass(frozen=True, kw_only=True)
class CombinedSplit:
    """A split's combined bins as a view uses them."""

    split: str
    artifact: Artifact
    receipt: Receipt
    facts: CombinedBinsFacts

    @property
    def tokens(self) -> Part:
        """The token file."""
        return Part(self.artifact, self.receipt.file(f"{self.split}.bin"))

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
class UnderConstruction:
    """A view that is being written into `target`, a staging directory; what its writer leaves for the receipt."""

    corpus: CorpusDeclaration
    store: ArtifactStore
    target: Path
    threads: int
    joined: list[Joined] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)

    def link(self, split: CombinedSplit, name: str) -> None:
        """The split's tokens under the trainer's name: the same bytes, which need no second reading."""
        self.joined.append(self.store.join(self.target, name, [split.tokens], verify=False))

    def local(self, split: CombinedSplit, name: str) -> Path:
        """A small file of the combined bins, on this machine."""
        return self.store.local(split.artifact, [name]) / name


Copied = Iterator[tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]]
"""Blocks of a copy in order: ids, shape ``(tokens,)``, and the lengths of the documents in them, if it keeps any."""


@dataclass(frozen=True, kw_only=True)
class CorpusView:
    """One trainer's format.

    Attributes:
        description: What it is, on the asset's page.
        write: Writes all splits into a view under construction.
        defects: What of the finished layout its trainer would not accept: one sentence a defect, from the view's
            directory, its receipt and the splits.
        linked: Where a linked split's tokens lie, relative to the view, given the split's name;
            None for a copying view.
        copied: Reads a copied split's ids back, given the view's directory and the split's name.
        places: Opens a copying view to say where documents lie in it.
        trainer: What to tell the trainer, in one line: given where the view is, and its facts.
        calls: What the reader of a linked view calls a document's place, given the view's receipt.
        keeps_documents: Whether a copy holds every token and every document; else the tail may be left out.
        kinds: Dagster's kinds.
        settings: The declaration's keys that decide the view's bytes beside the stream.
        version: Raised when the writer changes a byte.
        columns: Name → type of each column, of a view whose rows have columns.
    """

    name: str
    description: str
    write: Callable[[Sequence[CombinedSplit], UnderConstruction], None]
    defects: Callable[[Path, Receipt, Sequence[CombinedSplit]], Iterator[str]]
    trainer: Callable[[str, ViewFacts], str]
    linked: Callable[[str], str] | None = None
    copied: Callable[[Path, str], Copied] | None = None
    places: Callable[[ArtifactHandle], Locate] | None = None
    calls: Callable[[Span, Receipt], Mapping[str, int | list[int]]] = lambda _span, _receipt: {}
    keeps_documents: bool = False
    kinds: frozenset[str] = frozenset({"numpy"})
    settings: tuple[str, ...] = ()
    version: int = 1
    columns: Mapping[str, str] = field(default_factory=dict)


def view_named(name: str) -> CorpusView:
    """The view of a module in `views/`."""
    found: CorpusView = import_module(f"dataprep_assets.pipelines.corpus.views.{name}").VIEW
    return found


def artifact_name(view: str) -> str:
    """The artifact, and asset, of a view: `nanogpt_bins`."""
    return f"{view}_bins"


def trainer_lines(corpus: CorpusDeclaration, store: ArtifactStore) -> Iterator[str]:
    """What to tell the trainer of each view that is there."""
    for name in corpus.views:
        artifact = corpus.artifact(artifact_name(name))
        if (receipt := store.receipt(artifact)) is not None:
            facts = ViewFacts.of(receipt)
            splits = {split: facts.splits[split] for split in corpus.splits}  # as declared: a receipt sorts its keys
            yield view_named(name).trainer(store.location(artifact), facts.model_copy(update={"splits": splits}))


def combined_splits(corpus: CorpusDeclaration, store: ArtifactStore) -> list[CombinedSplit]:
    """All splits' combined bins; MissingArtifactError naming the first that is not there."""
    artifacts = [corpus.artifact(COMBINED_BINS, split) for split in corpus.splits]
    found = []
    for split, artifact in zip(corpus.splits, artifacts, strict=True):
        receipt = store.require(artifact)
        facts = CombinedBinsFacts.of(receipt)
        found.append(CombinedSplit(split=split, artifact=artifact, receipt=receipt, facts=facts))
    if len({(s.facts.dtype, s.facts.tokenizer_sha256) for s in found}) > 1:
        raise IntegrityError(
            f"{corpus.dataset}: its splits differ in tokenizer or dtype. Materialize combined_bins again"
        )
    return found


def view_spec(
    corpus: CorpusDeclaration, name: str, *, combined: tuple[ArtifactSpec, ...], step: RunStep
) -> ArtifactSpec:
    """One view of a corpus.

    Args:
        corpus: The dataset.
        name: Of the view's module.
        combined: The combined bins of every split.
        step: The run in which the views are made.
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
        step=step,
        recipes=lambda store, _: [_recipe(corpus, view, combined_splits(corpus, store))],
        build=lambda request: [Outcome.of(*build_view(corpus, request.store, name, threads=request.workers))],
        places=partial(_places, corpus, view),
        proofs=Proofs(proofs=_PROOFS, examine=partial(_examine, corpus, view)),
    )


def _places(corpus: CorpusDeclaration, view: CorpusView, store: ArtifactStore, shards: Mapping[str, Receipt]) -> Locate:
    """Opens a view to say where documents lie in it; IntegrityError when it is not of these shards."""
    handle = ArtifactHandle.of(store, corpus.artifact(artifact_name(view.name)))
    combined = {split: current_combined(corpus, store, split, shards).content for split in corpus.splits}
    if dict(handle.receipt.inputs) != combined:
        raise IntegrityError(f"{handle.artifact} was made of other combined bins than there are. Run the dataset first")
    if view.places is not None:
        return view.places(handle)
    linked, itemsize = view.linked, flat_bins.token_dtype(ViewFacts.of(handle.receipt).dtype).itemsize

    def locate(span: Span) -> Iterator[Place]:
        if linked is not None:
            file, at = linked(span.split), view.calls(span, handle.receipt)
            artifact = str(handle.artifact)
            yield Place(artifact=artifact, file=file, start=span.start, stop=span.stop, itemsize=itemsize, at=at)

    return locate


def _recipe(corpus: CorpusDeclaration, view: CorpusView, splits: Sequence[CombinedSplit]) -> Recipe:
    settings = {name: getattr(corpus, name) for name in view.settings}
    # one setting enters the key bare, several as a list: so it was when no view had two
    values = list(settings.values())
    entered = values[0] if len(values) == 1 else values or None
    return Recipe(
        artifact=corpus.artifact(artifact_name(view.name)),
        key=digest_value(["view", view.version, view.name, entered, [[s.split, s.receipt.content] for s in splits]]),
        version=view.version,
        settings=settings,
        upstream={f"{COMBINED_BINS}/{s.split}": s.receipt.content for s in splits},
    )


def build_view(corpus: CorpusDeclaration, store: ArtifactStore, name: str, *, threads: int = 1) -> tuple[Receipt, bool]:
    """Link the combined bins of every split into a view's layout and write its sidecars, or copy their ids into it.

    Args:
        corpus: The dataset.
        store: Where its artifacts are.
        name: Of the view.
        threads: Of a copying view.

    Returns:
        The receipt, and whether the view was reused.
    """
    view, splits = view_named(name), combined_splits(corpus, store)

    def write(staged: Path) -> Written:
        made = UnderConstruction(corpus=corpus, store=store, target=staged, threads=threads)
        view.write(splits, made)
        stream = splits[0].facts
        return Written(
            inputs={s.split: s.receipt.content for s in splits},
            facts=ViewFacts(
                view=name,
                splits={s.split: s.token_count for s in splits},
                dtype=stream.dtype,
                tokenizer=stream.tokenizer,
                vocab_size=stream.vocab_size,
                eos_token_id=stream.eos_token_id,
                **made.facts,
            ),
            ledger=Ledger.total(s.receipt.ledger or Ledger() for s in splits),
            digests=made.digests,
            joined=tuple(made.joined),
        )

    return ensure(_recipe(corpus, view, splits), store, write, corpus.verify, resumes=view.linked is None)


_PROOFS = (
    Proof("same_stream", "Its tokens are those of the combined bins, every one.", version=2),
    Proof("layout_valid", "Its sidecars describe its tokens exactly.", version=2),
    Proof("no_retracted_document", "It is made of the combined bins that are there, and these hold none."),
)


def _examine(
    corpus: CorpusDeclaration, view: CorpusView, store: ArtifactStore, _: Sequence[str]
) -> Iterator[tuple[str, Finding]]:
    artifact = corpus.artifact(artifact_name(view.name))
    receipt, directory, splits = store.require(artifact), store.local(artifact), combined_splits(corpus, store)
    yield "same_stream", same_stream(directory, receipt, view, splits, store)
    yield "layout_valid", layout_valid(directory, receipt, view, splits)
    combined = {split.split: split.receipt for split in splits}
    yield "no_retracted_document", no_retracted_document(corpus, store, receipt, combined)
