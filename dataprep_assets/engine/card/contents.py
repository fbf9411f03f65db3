"""The content of a data card, gathered from a dataset's declaration, its list of specs and their receipts.

Only receipts are read, so a card costs as little as a `dataprep status` that reads no data files. The content does not
depend on the machine: it has no date, host or path of a local source. The card of a sensitive dataset has only counts:
no names of files or partitions, no locations of sources, no content digests.

Entry points: `CardSubject`, which a layer creates, and `gather_card`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dataprep_assets.engine.artifact.spec import ArtifactSpec, AssetInput, DatasetInput
from dataprep_assets.engine.checks.check import RebuildCount, count_rebuilt
from dataprep_assets.engine.privacy import OPEN, Privacy, load_privacy
from dataprep_assets.engine.yaml.declaration import Attribution, CardDeclaration, DatasetDeclaration
from dataprep_assets.errors import MissingArtifactError
from dataprep_assets.formats.croissant import ParquetColumn
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import RETRACTED, Content, FileRecord, Ledger, Receipt
from dataprep_assets.stores.files import digest_value
from dataprep_assets.tokenization.reference import SETTING

PAGE = "dataset_card.md"
"""Name of the page for people."""
PUBLISHED = "published"
"""Name of the publication on the Hub. It is defined here, because its module is imported only if it is declared."""
Receipts = Mapping[ArtifactSpec, Sequence[Receipt]]
"""Artifact → the receipts of its partitions, in the order of the plan."""


@dataclass(frozen=True, kw_only=True)
class CardSource:
    """A source of a dataset. `place` is a public name (a repository, a URL); None for local files.

    `files` and `bytes` are the number and total size of the listed files; None if the files were not counted.
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


def add_attribution(source: CardSource, attribution: Attribution) -> CardSource:
    """Return the source with the declared attribution added."""
    return replace(source, license=attribution.license, citation=attribution.citation, homepage=attribution.homepage)


@dataclass(frozen=True, kw_only=True)
class SplitCounts:
    """The counts of one split. A count that its receipts do not record is None."""

    split: str
    files: int | None = None
    rows: int | None = None
    documents: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class CardTokenizer:
    """The tokenizer of a dataset.

    Attributes:
        name: Its name.
        sha256: SHA-256 of its files.
        vocab_size: `len(tokenizer)`.
        separator: The token that ends a document.
        separator_id: Id of this token.
        reference: Unicode tables of the library that defines the ids, if the receipts name them.
        engine: The engine that encoded the text, and the reason for it.
        chat_template: Features that the chat template writes and drops, if there is a template.
        conversations: Forms of the rows with conversations, and the keys of these rows that are not read.
    """

    name: str
    sha256: str
    vocab_size: int
    separator: str | None = None
    separator_id: int | None = None
    reference: Mapping[str, str] = field(default_factory=dict)
    engine: str | None = None
    chat_template: str | None = None
    conversations: str | None = None


@dataclass(frozen=True, kw_only=True)
class CardRecords:
    """Parquet rows of a product, stored in the files whose paths start with `prefix`."""

    artifact: str
    split: str
    prefix: str
    columns: Sequence[ParquetColumn]


@dataclass(frozen=True, kw_only=True)
class CardFile:
    """A file of a product. Its path is relative to the dataset's folder."""

    path: str
    record: FileRecord


@dataclass(frozen=True, kw_only=True)
class CardArtifact:
    """One artifact of a dataset.

    Attributes:
        partitions: Number of its partitions; None if unpartitioned.
        version: Version of its step; None if partitions were built by different versions.
        content: Digest of its files' digests; None if the dataset is sensitive.
        made_of: Names of its inputs.
        described: The files of a product; empty if the dataset is sensitive.
        contents: The folder and the content digest of each partition of a product; empty if the dataset is sensitive.
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
    contents: tuple[tuple[str, Content], ...] = ()


@dataclass(frozen=True, kw_only=True)
class CardCheck:
    """A check of an artifact."""

    artifact: str
    name: str
    description: str
    blocking: bool


@dataclass(frozen=True, kw_only=True)
class CardSection:
    """A section of the page that a layer adds. `text` is Markdown.

    It may not contain names or text of a sensitive dataset.
    """

    title: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Card:
    """The whole content of a card, and the build time, which is not part of the page because it differs per build.

    Attributes:
        rebuild_count: Number of documents that the checks rebuild from the source; None if they rebuild no documents.
        planned: Names of the dataset's artifacts with their splits, without shards and months.
    """

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
    rebuild_count: RebuildCount | None = None
    privacy: Privacy = OPEN
    sections: tuple[CardSection, ...] = ()
    planned: tuple[str, ...] = ()

    @property
    def licenses(self) -> list[str]:
        """The dataset's own license if declared; otherwise the distinct licenses of its sources."""
        if self.declared.license is not None:
            return [self.declared.license]
        return list(dict.fromkeys(source.license for source in self.sources if source.license is not None))

    @property
    def retracted(self) -> int:
        """Number of documents dropped as retracted."""
        return self.ledger.dropped.get(RETRACTED, 0)


@dataclass(frozen=True, kw_only=True, eq=False)
class CardSubject:
    """Information about a dataset that its layer provides, because each layer records it differently.

    Attributes:
        declaration: The dataset's declaration.
        specs: All its artifacts except the card.
        products: The artifacts that trainers read, whose files are described individually. On the Hub, the first one
            with Parquet or JSON Lines files is the default of `load_dataset`.
        counted: The artifacts whose ledgers account for every row of the sources.
        selected: The artifacts whose receipts have the reasons for the rows that these ledgers count as `selection`.
        sources: The dataset's sources.
        tokenizer: Its tokenizer; None if nothing is tokenized.
        splits: Returns the counts of its splits. By default, they come from the ledgers of `counted`.
        records: The Parquet files among the products' files.
        sections: Additional sections of the page.
    """

    declaration: DatasetDeclaration
    specs: Sequence[ArtifactSpec]
    products: Sequence[ArtifactSpec]
    counted: Sequence[ArtifactSpec]
    selected: Sequence[ArtifactSpec] = ()
    sources: Callable[[ArtifactStore, Receipts], Sequence[CardSource]]
    tokenizer: Callable[[Receipts], CardTokenizer | None] = field(default=lambda _: None)
    splits: Callable[[Receipts], Sequence[SplitCounts]] | None = None
    records: Callable[[Receipts], Sequence[CardRecords]] = field(default=lambda _: ())
    sections: Callable[[Receipts], Sequence[CardSection]] = field(default=lambda _: ())


def count_split(split: str, receipts: Sequence[Receipt]) -> SplitCounts:
    """Return the counts of a split from the ledgers of its partitions."""
    total = Ledger.total(receipt.ledger for receipt in receipts if receipt.ledger is not None)
    files = sum(len(receipt.sources) for receipt in receipts)
    # Leave the number of files unknown if it is 0, because the receipts then do not list their source files.
    return SplitCounts(
        split=split, files=files or None, rows=total.rows_in, documents=total.documents, tokens=total.tokens
    )


def count_selected_by_reason(receipts: Iterable[Receipt]) -> Counter[str]:
    """Return the number of rows that selections drop, by reason, according to their receipts' lines per source file."""
    counts: Counter[str] = Counter()
    for receipt in receipts:
        for line in receipt.sources:
            counts.update(line["dropped"])
    return counts


def gather_card(subject: CardSubject, store: ArtifactStore) -> Card:
    """Return the card of a dataset according to its current receipts.

    Raises MissingArtifactError that names the first artifact without a receipt.
    """
    declaration, receipts = subject.declaration, _read_receipts(subject, store)
    counted_receipts = [receipt for spec in subject.counted for receipt in receipts[spec]]
    splits = (
        [count_split(spec.split or "all", receipts[spec]) for spec in subject.counted]
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
        ledger=_sum_ledgers(counted_receipts, splits).with_named_drops(
            count_selected_by_reason(receipt for spec in subject.selected for receipt in receipts[spec])
        ),
        tokenizer=_find_tokenizer(subject, receipts),
        artifacts=tuple(
            _describe_artifact(spec, spec_receipts, product=spec in subject.products)
            for spec, spec_receipts in receipts.items()
            if spec.kept
        ),
        checks=tuple(_list_checks(subject.specs)),
        records=tuple(subject.records(receipts)),
        build_seconds=sum(
            _measure_seconds(receipt) for spec_receipts in receipts.values() for receipt in spec_receipts
        ),
        rebuild_count=_count_rebuilt(declaration, receipts),
        privacy=load_privacy(declaration),
        sections=tuple(subject.sections(receipts)),
        planned=tuple(sorted({_format_planned_name(spec, store) for spec in receipts if spec.kept})),
    )
    return _remove_names_and_digests(card) if declaration.sensitive else card


def _count_rebuilt(declaration: DatasetDeclaration, receipts: Receipts) -> RebuildCount | None:
    counts = [
        count_rebuilt(spec_receipts, spec.documents, declaration.prove.level)
        for spec, spec_receipts in receipts.items()
        if spec.documents is not None
    ]
    if not counts:
        return None
    documents, total = sum(count.documents for count in counts), sum(count.of for count in counts)
    return RebuildCount(level=declaration.prove.level, documents=documents, of=total)


def _find_tokenizer(subject: CardSubject, receipts: Receipts) -> CardTokenizer | None:
    """Return the tokenizer, with the Unicode tables of the first receipt that records them."""
    tokenizer = subject.tokenizer(receipts)
    settings = (receipt.recipe.get("settings", {}) for spec_receipts in receipts.values() for receipt in spec_receipts)
    tables = next((receipt_settings[SETTING] for receipt_settings in settings if SETTING in receipt_settings), None)
    return tokenizer if tokenizer is None or tables is None else replace(tokenizer, reference=tables)


def _measure_seconds(receipt: Receipt) -> float:
    """Return the build time: CPU seconds if measured, otherwise elapsed seconds, otherwise 0."""
    measurements = receipt.measured
    return float(measurements.get("cpu_seconds", measurements.get("wall_seconds", 0.0)))


def _sum_ledgers(receipts: Sequence[Receipt], splits: Sequence[SplitCounts]) -> Ledger:
    """Return the sum of the ledgers. Without ledgers, rows were used unchanged, and the splits' rows are counted."""
    ledgers = [receipt.ledger for receipt in receipts if receipt.ledger is not None]
    if ledgers:
        return Ledger.total(ledgers)
    rows = sum(split.rows or 0 for split in splits)
    return Ledger(rows_in=rows, documents=rows)


def _read_receipts(subject: CardSubject, store: ArtifactStore) -> Receipts:
    receipts: dict[ArtifactSpec, list[Receipt]] = {}
    for spec in subject.specs:
        artifacts = spec.artifacts(store)
        spec_receipts = store.receipts(artifacts)
        for artifact, receipt in zip(artifacts, spec_receipts, strict=True):
            if receipt is None:
                raise MissingArtifactError(f"{artifact}: missing. Build it before the data card")
        receipts[spec] = [receipt for receipt in spec_receipts if receipt is not None]
    return receipts


def _describe_artifact(spec: ArtifactSpec, receipts: Sequence[Receipt], *, product: bool) -> CardArtifact:
    # Omit the version if the partitions were built by different versions of the step, because the card names only one.
    version = {receipt.recipe.get("version") for receipt in receipts}
    contents = [[receipt.partition, receipt.content] for receipt in receipts]
    return CardArtifact(
        name=_format_spec_name(spec),
        partitions=None if spec.partitions is None else len(receipts),
        noun=spec.noun,
        version=version.pop() if len(version) == 1 else None,
        files=sum(len(receipt.files) for receipt in receipts),
        bytes=sum(receipt.total_bytes for receipt in receipts),
        content=receipts[0].content if spec.partitions is None and receipts else digest_value(contents),
        made_of=tuple(_format_spec_name(source) for source in spec.inputs),
        product=product,
        described=tuple(_list_files(receipts)) if product else (),
        contents=tuple((_format_artifact_folder(receipt), receipt.content) for receipt in receipts) if product else (),
    )


def _format_spec_name(spec: ArtifactSpec | DatasetInput | AssetInput) -> str:
    return spec.path[-1] if isinstance(spec, ArtifactSpec) else "/".join(spec.path)


def _list_files(receipts: Sequence[Receipt]) -> Iterator[CardFile]:
    for receipt in receipts:
        for record in receipt.files:
            yield CardFile(path=f"{_format_artifact_folder(receipt)}/{record.path}", record=record)


def _format_planned_name(spec: ArtifactSpec, store: ArtifactStore) -> str:
    artifact = spec.locate_artifact(store) if spec.partitions is None else None
    parts = (spec.name, spec.split) if artifact is None else (artifact.name, artifact.partition)
    return "/".join(filter(None, parts))


def _format_artifact_folder(receipt: Receipt) -> str:
    """Return the path of an artifact in its dataset's folder."""
    return "/".join(filter(None, (receipt.artifact, receipt.partition)))


def _list_checks(specs: Sequence[ArtifactSpec]) -> Iterator[CardCheck]:
    """Yield the checks of all artifacts; a check of several splits is listed once."""
    keys: set[tuple[str, str]] = set()
    for spec in specs:
        for check in spec.checks:
            if (spec.name, check.name) not in keys:
                keys.add((spec.name, check.name))
                yield CardCheck(
                    artifact=spec.name, name=check.name, description=check.sentence, blocking=check.blocking
                )


def _remove_names_and_digests(card: Card) -> Card:
    """Return the card without names of files, partitions and places, and without digests.

    A digest would let readers test a guessed text.
    """
    sources = [replace(s, name=f"source {i}", place=None, revision=None) for i, s in enumerate(card.sources, 1)]
    artifacts = [replace(artifact, content=None, described=(), contents=()) for artifact in card.artifacts]
    return replace(card, sources=tuple(sources), artifacts=tuple(artifacts), records=())
