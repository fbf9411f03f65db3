"""What a data card says of a dataset: gathered from its declaration, the list of its specs and their receipts.

Nothing is read but receipts, so a card costs what `dataprep status` costs without looking at files; and nothing of this
machine is in it: no date, no host, no path of a local source. Of a sensitive dataset it holds counts alone: no name of
a file or of a partition, no place of a source, no digest of its content.

Entry points: `CardSubject`, which a wing makes, and `gathered`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dataprep_assets.errors import MissingArtifactError
from dataprep_assets.formats.croissant import Column
from dataprep_assets.graph.declaration import Attributed, CardDeclaration, DatasetDeclaration
from dataprep_assets.graph.small_cells import SHOW_ALL, SmallCells, cells_of
from dataprep_assets.graph.spec import ArtifactSpec, OtherDataset
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.ledger import RETRACTED, Ledger
from dataprep_assets.integrity.receipt import FileRecord, Receipt

__all__ = [
    "Card",
    "CardArtifact",
    "CardCheck",
    "CardRecords",
    "CardSource",
    "CardSubject",
    "CardTokenizer",
    "Receipts",
    "SplitCounts",
    "attributed",
    "gathered",
    "ledger_counts",
]

Receipts = Mapping[ArtifactSpec, Sequence[Receipt]]
"""Every artifact of a dataset with the receipts of its partitions, in the order of the plan."""


@dataclass(frozen=True, kw_only=True)
class CardSource:
    """A source of a dataset. `place` is a public name (a repository, a URL), None for files of this machine.

    `files` and `bytes` are counts of what was listed, None where nobody counted.
    """

    name: str
    kind: str
    place: str | None = None
    revision: str | None = None
    files: int | None = None
    bytes: int | None = None
    license: str | None = None
    citation: str | None = None
    homepage: str | None = None


def attributed(source: CardSource, declared: Attributed) -> CardSource:
    """The source with what was declared of it."""
    return replace(source, license=declared.license, citation=declared.citation, homepage=declared.homepage)


@dataclass(frozen=True, kw_only=True)
class SplitCounts:
    """The counts of one split; None for what its receipts do not count."""

    split: str
    files: int | None = None
    rows: int | None = None
    documents: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class CardTokenizer:
    """The tokenizer: its name, the SHA-256 of its files, `len(tokenizer)`, the token that ends a document."""

    name: str
    sha256: str
    vocab_size: int
    separator: str | None = None
    separator_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class CardRecords:
    """Rows of Parquet in a product: those of the files whose paths start with `prefix`."""

    artifact: str
    split: str
    prefix: str
    columns: Sequence[Column]


@dataclass(frozen=True, kw_only=True)
class CardFile:
    """A file of a product, its path relative to the dataset's folder."""

    path: str
    record: FileRecord


@dataclass(frozen=True, kw_only=True)
class CardArtifact:
    """One artifact: of how many partitions (None: unpartitioned), by which version of its step, made of what.

    `content` digests its files' digests. Of a product, `described` are the files, and `contents` the folder and the
    content of each partition. None and empty where the dataset is sensitive.
    """

    name: str
    partitions: int | None
    noun: str
    version: int | None
    files: int
    bytes: int
    content: str | None
    made_of: tuple[str, ...]
    product: bool
    described: tuple[CardFile, ...] = ()
    contents: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class CardCheck:
    """What is proven of an artifact."""

    artifact: str
    name: str
    description: str
    blocking: bool


@dataclass(frozen=True, kw_only=True)
class Card:
    """All that a card says, and what building the dataset took, which differs between builds and is on no page."""

    dataset: str
    description: str
    sensitive: bool
    declared: CardDeclaration
    sources: tuple[CardSource, ...]
    splits: tuple[SplitCounts, ...]
    ledger: Ledger
    tokenizer: CardTokenizer | None
    artifacts: tuple[CardArtifact, ...]
    checks: tuple[CardCheck, ...]
    records: tuple[CardRecords, ...]
    build_seconds: float
    cells: SmallCells = SHOW_ALL

    @property
    def licenses(self) -> list[str]:
        """The dataset's own licence, else those of its sources, each once."""
        if self.declared.license is not None:
            return [self.declared.license]
        return list(dict.fromkeys(source.license for source in self.sources if source.license is not None))

    @property
    def retracted(self) -> int:
        """Documents taken out because somebody asked for it."""
        return self.ledger.dropped.get(RETRACTED, 0)


@dataclass(frozen=True, kw_only=True, eq=False)
class CardSubject:
    """What a wing knows of its datasets that specs and receipts do not say in one way for all wings.

    Attributes:
        declaration: The dataset.
        specs: Its artifacts, but for the card.
        products: Those that trainers read, whose files are described one by one.
        counted: Those whose ledgers hold what became of every row of the sources.
        sources: Its sources.
        tokenizer: Its tokenizer; None where nothing is tokenized.
        splits: Its counts, by default those of the ledgers of `counted`.
        records: Parquet among the products' files.
    """

    declaration: DatasetDeclaration
    specs: Sequence[ArtifactSpec]
    products: Sequence[ArtifactSpec]
    counted: Sequence[ArtifactSpec]
    sources: Callable[[ArtifactStore, Receipts], Sequence[CardSource]]
    tokenizer: Callable[[Receipts], CardTokenizer | None] = field(default=lambda _: None)
    splits: Callable[[Receipts], Sequence[SplitCounts]] | None = None
    records: Callable[[Receipts], Sequence[CardRecords]] = field(default=lambda _: ())


def ledger_counts(split: str, receipts: Sequence[Receipt]) -> SplitCounts:
    """The counts of a split by the ledgers of its partitions."""
    total = Ledger.total(receipt.ledger for receipt in receipts if receipt.ledger is not None)
    files = sum(len(receipt.sources) for receipt in receipts)
    return SplitCounts(
        split=split, files=files or None, rows=total.rows_in, documents=total.documents, tokens=total.tokens
    )


def gathered(subject: CardSubject, store: ArtifactStore) -> Card:
    """The card of a dataset as its receipts are now.

    Raises MissingArtifactError naming the first artifact without one.
    """
    declaration, receipts = subject.declaration, _receipts(subject, store)
    counted = [receipt for spec in subject.counted for receipt in receipts[spec]]
    splits = (
        [ledger_counts(spec.split or "all", receipts[spec]) for spec in subject.counted]
        if subject.splits is None
        else subject.splits(receipts)
    )
    card = Card(
        dataset=declaration.dataset,
        description=declaration.description,
        sensitive=declaration.sensitive,
        declared=declaration.card,
        sources=tuple(subject.sources(store, receipts)),
        splits=tuple(splits),
        ledger=_ledger(counted, splits),
        tokenizer=subject.tokenizer(receipts),
        artifacts=tuple(
            _artifact(spec, every, product=spec in subject.products) for spec, every in receipts.items() if spec.kept
        ),
        checks=tuple(_checks(subject.specs)),
        records=tuple(subject.records(receipts)),
        build_seconds=sum(_seconds(receipt) for every in receipts.values() for receipt in every),
        cells=cells_of(declaration),
    )
    return _counts_alone(card) if declaration.sensitive else card


def _seconds(receipt: Receipt) -> float:
    """CPU seconds where they were measured, else how long it took; 0 where neither was."""
    measured = receipt.measured
    return float(measured.get("cpu_seconds", measured.get("wall_seconds", 0.0)))


def _ledger(counted: Sequence[Receipt], splits: Sequence[SplitCounts]) -> Ledger:
    """What became of every row; of artifacts without a ledger, whose rows are taken as they are, their counts."""
    ledgers = [receipt.ledger for receipt in counted if receipt.ledger is not None]
    if ledgers:
        return Ledger.total(ledgers)
    rows = sum(split.rows or 0 for split in splits)
    return Ledger(rows_in=rows, documents=rows)


def _receipts(subject: CardSubject, store: ArtifactStore) -> Receipts:
    found: dict[ArtifactSpec, list[Receipt]] = {}
    for spec in subject.specs:
        artifacts = spec.artifacts(store)
        every = store.receipts(artifacts)
        for artifact, receipt in zip(artifacts, every, strict=True):
            if receipt is None:
                raise MissingArtifactError(f"{artifact}: not there. Materialize it before the data card")
        found[spec] = [receipt for receipt in every if receipt is not None]
    return found


def _artifact(spec: ArtifactSpec, receipts: Sequence[Receipt], *, product: bool) -> CardArtifact:
    version = {receipt.recipe.get("version") for receipt in receipts}
    contents = [[receipt.partition, receipt.content] for receipt in receipts]
    return CardArtifact(
        name=_name(spec),
        partitions=None if spec.partitions is None else len(receipts),
        noun=spec.noun,
        version=version.pop() if len(version) == 1 else None,
        files=sum(len(receipt.files) for receipt in receipts),
        bytes=sum(receipt.total_bytes for receipt in receipts),
        content=receipts[0].content if spec.partitions is None and receipts else digest_value(contents),
        made_of=tuple(_name(source) for source in spec.inputs),
        product=product,
        described=tuple(_described(receipts)) if product else (),
        contents=tuple((_folder(receipt), receipt.content) for receipt in receipts) if product else (),
    )


def _name(spec: ArtifactSpec | OtherDataset) -> str:
    if isinstance(spec, OtherDataset):
        return f"{spec.dataset}/{spec.name}"
    return spec.path[-1]


def _described(receipts: Sequence[Receipt]) -> Iterator[CardFile]:
    for receipt in receipts:
        for record in receipt.files:
            yield CardFile(path=f"{_folder(receipt)}/{record.path}", record=record)


def _folder(receipt: Receipt) -> str:
    """Where an artifact lies in its dataset's folder."""
    return "/".join(filter(None, (receipt.artifact, receipt.partition)))


def _checks(specs: Sequence[ArtifactSpec]) -> Iterator[CardCheck]:
    """The checks of all artifacts; those of the same name in several splits once."""
    seen: set[tuple[str, str]] = set()
    for spec in specs:
        for proof in spec.proofs.proofs if spec.proofs is not None else ():
            if (spec.name, proof.name) not in seen:
                seen.add((spec.name, proof.name))
                yield CardCheck(
                    artifact=spec.name, name=proof.name, description=proof.description, blocking=proof.blocking
                )


def _counts_alone(card: Card) -> Card:
    """Without everything that names a file, a partition or a place, or that a guessed text could be compared with."""
    sources = [replace(s, name=f"source {i}", place=None, revision=None) for i, s in enumerate(card.sources, 1)]
    artifacts = [replace(artifact, content=None, described=(), contents=()) for artifact in card.artifacts]
    return replace(card, sources=tuple(sources), artifacts=tuple(artifacts), records=())
