"""Defines a view of a corpus: one trainer's format over the combined bins. `view` makes the artifacts."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field

from dataprep_assets.engine.artifact.facts import Facts
from dataprep_assets.engine.trace.place import DocumentSpan, Locate
from dataprep_assets.errors import ConfigError, IntegrityError
from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.formats.croissant import ParquetColumn
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifact_handle import ArtifactHandle
from dataprep_assets.integrity.artifacts import ArtifactStore, FileRef, JoinedFile
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.combined_bins import COMBINED_BINS, CombinedBinsFacts
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.views import VIEWS
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
                f"{self.name!r} is no name for a view: give lower-case letters, digits and '_', and neither "
                "`token` nor `combined`, whose bins are others"
            )


def combined_splits(corpus: CorpusDeclaration, store: ArtifactStore) -> list[CombinedSplit]:
    """All splits' combined bins; raises MissingArtifactError naming the first that is not there.

    Raises IntegrityError if the splits differ in tokenizer or dtype.
    """
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


def view_named(name: str) -> CorpusView:
    """The view with this name, of this package or of another.

    Raises ConfigError if there is none, several packages have one, or it cannot be imported.
    """
    extension = VIEWS[name]
    found = extension.load()
    if not isinstance(found, CorpusView):
        raise extension.unfit("is not a CorpusView")
    # both names are used: the declared one for the artifact, the view's own in its key
    if found.name != name:
        raise extension.unfit(f"is called {found.name!r}")
    return found


def artifact_name(view: str) -> str:
    """The artifact, and asset, of a view: `nanogpt_bins`."""
    return f"{view}_bins"
