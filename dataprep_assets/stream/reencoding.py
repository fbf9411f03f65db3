"""Checks that a shard's ids are the reference's: a certificate covers the shard, and re-encoding gives its ids."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.bounds import alive, json_of
from dataprep_assets.curation.documents import FileDocuments
from dataprep_assets.curation.selection import Selection, with_tokens
from dataprep_assets.engine.checks.check import (
    BY_REFERENCE,
    EVERY_DOCUMENT,
    REBUILD,
    SAMPLE,
    SAMPLED,
    Finding,
    draw_documents,
    fail_on_errors,
    ledger_of,
    name_of,
    verdict,
)
from dataprep_assets.errors import CertificateError, FormatError, IntegrityError, TokenizerError, count_of
from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.formats.document_index import IDS, ROWS, DocumentRows, open_ids
from dataprep_assets.integrity.receipt import Ledger, Receipt
from dataprep_assets.sources.readers.records import RecordFields
from dataprep_assets.stores.files import canonical_json
from dataprep_assets.stream.token_shard import ENDS, QUARANTINE, TOKENS, TokenBinsFacts, document_rows
from dataprep_assets.stream.token_stream import SourcePart, StreamPlan, load_encoder
from dataprep_assets.tokenization.bundle import TokenizerBundle, loaded_once
from dataprep_assets.tokenization.certificate import CLASSES, Certificate
from dataprep_assets.tokenization.document_ids import DocumentIds
from dataprep_assets.tokenization.engines import Encoded, ReferenceEngine, SpecialTokens, installed


@dataclass(frozen=True)
class IndexCheck:
    """A document index to compare documents with.

    Attributes:
        rows: The source row of each document.
        ids: How document ids are computed; None: compare only rows.
        stored: The ids in `document_ids.bin`, shape `(documents,)`, uint64; None if this file does not exist.
    """

    rows: DocumentRows
    ids: DocumentIds | None
    stored: NDArray[np.uint64] | None

    def differences(self, documents: FileDocuments, file: int, first: int, label: str) -> Iterator[str]:
        """Yield differences between the index and some documents of a source file, at most one per kind.

        Args:
            documents: The documents as read from the file, identified by `ids`.
            file: The file's number in the stream.
            first: Number, in the stream, of the first document.
            label: The file's name in messages.
        """
        # A source that has grown has more documents than the index. The caller compares their number.
        count = max(0, min(len(documents.texts), self.rows.documents - first))
        file_rows = documents.rows[:count]
        if len(wrong := np.flatnonzero(self.rows.rows(file, first, first + count) != file_rows)):
            yield (
                f"{label}: row {file_rows[wrong[0]]}: {ROWS} has a different row for document {first + int(wrong[0])}"
            )
        if documents.ids is None or self.stored is None:
            return
        if len(wrong := np.flatnonzero(self.stored[first : first + count] != documents.ids[:count])):
            yield (f"{label}: row {file_rows[wrong[0]]}: {IDS} has a different id for document {first + int(wrong[0])}")


_ALL = Selection(ids=None)


@dataclass
class _Installed:
    """An engine by name and installed version, without its vocabulary."""

    name: str
    version: str

    def encode(self, texts: Sequence[str]) -> Encoded:
        raise TokenizerError(f"cannot encode: only the identity of {self.name} is loaded")


@cache
def _installed(name: str) -> _Installed:
    return _Installed(name, installed(name) or "not installed")


@fail_on_errors
def engine_certified(receipt: Receipt, bundle: TokenizerBundle, special_tokens: SpecialTokens) -> Finding:
    """Check that the shard's engine was certified for this tokenizer, this mode and the versions that ran.

    Installed versions that differ from the certificate's are only a warning: the bytes were right when they were
    written, but the certificate would not cover a rerun.
    """
    value, ledger, name = TokenBinsFacts.of(receipt).certificate, ledger_of(receipt), name_of(receipt)
    try:
        certificate = Certificate.from_json(value)
    except (TypeError, KeyError) as error:
        raise IntegrityError(f"{name}: its receipt has no engine certificate: {error}. {REBUILD}") from error
    # Engines with the certificate's own versions leave only differences that affect the ids.
    own = _Installed(certificate.engine, certificate.engine_version)
    own_reference = _Installed(ReferenceEngine.name, certificate.reference_version)
    installed_engine, reference = _installed(certificate.engine), _installed(ReferenceEngine.name)
    drift = certificate.void_because(bundle, special_tokens, installed_engine, reference)
    defects = []
    decisive = certificate.tokenizer_digest != bundle.digest or certificate.special_tokens != special_tokens
    if decisive:
        void = certificate.void_because(bundle, special_tokens, own, own_reference)
        defects.append(f"{name}: the certificate is void: {void}")
    if (used := receipt.inputs.get("tokenizer")) != bundle.digest:
        defects.append(f"{name}: encoded with tokenizer {used}, but {bundle.name} is {bundle.digest}")
    defects += [f"{name}: {d}" for d in _uncovered(receipt, ledger, certificate)]
    warning = not defects and drift is not None
    if warning:
        defects.append(f"{name}: the certificate does not cover the installed versions: {drift}")
    documents = sum(certificate.compared.values())
    return verdict(
        defects,
        f"{certificate.engine} {certificate.engine_version} is certified on {count_of(documents, 'document')}; "
        f"refused classes: {', '.join(certificate.refused) or 'none'}.",
        "Materialize `engine_certificate` again, then this shard",
        warning=warning,
        facts={
            "compared": documents,
            "refused": ", ".join(certificate.refused) or "none",
            "reference_documents": ledger.reference_documents,
            "sampled_documents": ledger.sampled_documents,
            "engine": f"{certificate.engine} {certificate.engine_version}",
            "certificate": certificate.id,
        },
    )


def _uncovered(receipt: Receipt, ledger: Ledger, certificate: Certificate) -> Iterator[str]:
    """Yield actions recorded in the receipt that the certificate does not permit."""
    fast = not certificate.engine_is_refused
    for package, certified in (
        (certificate.engine, certificate.engine_version),
        (ReferenceEngine.name, certificate.reference_version),
    ):
        # If a receipt does not name the version, the certificate's version is assumed.
        ran = receipt.measured.get("versions", {}).get(package, certified)
        if fast and ran != certified:
            yield f"encoded with {package} {ran}, but the certificate covers {certified}"
    if fast and not certificate.compared:
        yield f"{certificate.engine} was used, but its certificate compared no documents"
    if not fast and ledger.reference_documents != ledger.documents:
        yield (
            f"{certificate.engine} is refused for all of {', '.join(CLASSES)}, but the reference encoded only "
            f"{ledger.reference_documents} of {count_of(ledger.documents, 'document')}"
        )
    if not certificate.refused and ledger.reference_documents:
        yield f"no class is refused, but {count_of(ledger.reference_documents, 'document')} went to the reference"


Encode = Callable[[list[str]], Encoded]
"""Encodes texts; returns the concatenated ids and the start of each text."""


@fail_on_errors
def round_trip(
    directory: Path,
    receipt: Receipt,
    sources: Mapping[str, SourcePart],
    bundle: TokenizerBundle,
    *,
    samples: int | None = SAMPLED,
    encode: Encode | None = None,
    text_field: str = "text",
    selection: Selection = _ALL,
    max_tokens: int | None = None,
) -> Finding:
    """Check that re-reading and re-encoding documents from their source files reproduces the stored ids.

    Each file that contains a chosen document is read once, to its end. So its digest, document count and bad records
    are checked as well, and the index of all its documents: the rows and, if `selection` identifies documents, the
    ids. The choice is seeded by the receipt's key, so that a failure is repeatable. Messages name file, row and token
    offset, but show neither text nor ids.

    Args:
        directory: The shard's directory.
        receipt: The shard's receipt.
        sources: A source line's label → the current file.
        bundle: The tokenizer.
        samples: Number of documents, spread over the shard; None: every document of every file.
        encode: Encodes all documents except a few, which the reference encodes; None: the reference encodes all.
        text_field: Field of a record that contains its text.
        selection: Decides which records become documents; records that it drops are not in the shard.
        max_tokens: Maximum length of a document in tokens, from the stream's plan.
    """
    facts = TokenBinsFacts.of(receipt)
    ends = document_ends.open_ends(directory / ENDS)
    tokens = flat_bins.open_tokens(directory / TOKENS, facts.dtype)
    document_ends.validate(directory / ENDS, len(tokens))
    readings = _choose(receipt, samples)
    reference = ReferenceEngine(bundle, facts.special_tokens)
    around = _Around(facts.separator_id, facts.bos_id, max_tokens)
    layout = _StreamLayout(tokens, ends, around, reference.encode, encode or reference.encode)
    ids = selection.ids
    stored_ids = open_ids(directory / IDS, len(ends)) if ids is not None else None
    fields = RecordFields(text_field, ids.id_field if ids is not None else None)
    index = IndexCheck(document_rows(directory, receipt), ids, stored_ids)
    quarantined = quarantined_rows(directory / QUARANTINE)
    defects: list[str] = []
    compared_documents = 0
    for reading in readings:
        label = reading.line["file"]
        if (part := sources.get(label)) is None:
            defects.append(f"{label}: a source in the receipt, but missing here")
            continue
        compared_documents += len(reading.wanted)
        defects += _differences(reading, part, layout, fields, index, selection, quarantined.get(label, []))
    scope = "every document" if samples is None else count_of(compared_documents, "document")
    return verdict(
        (f"{name_of(receipt)}: {d}" for d in defects),
        f"{scope} of {count_of(len(readings), 'source file')}, encoded again, "
        f"{'matches' if samples is None else 'match'} the stored ids.",
        f"The source or the shard has changed since the build. Verify `snapshot`. {REBUILD}",
        facts={
            "documents_compared": compared_documents,
            "source_files_read": len(readings),
            "documents": len(ends),
            "level": SAMPLE if samples is not None else EVERY_DOCUMENT,
        },
    )


@dataclass(frozen=True)
class _Reading:
    """A source line of the receipt whose file is read again.

    Attributes:
        line: The source line.
        file: Its number in the receipt.
        first: Number, in the shard, of the file's first document.
        wanted: Numbers, in the file, of the documents to compare, ascending.
        by_reference: The numbers in `wanted` that the reference encodes.
    """

    line: Mapping[str, Any]
    file: int
    first: int
    wanted: NDArray[np.int64]
    by_reference: NDArray[np.int64]


def _choose(receipt: Receipt, samples: int | None) -> list[_Reading]:
    """Return the files to read again: the files of the drawn documents, or all files if `samples` is None."""
    counts = [int(line["documents"]) for line in receipt.sources]
    firsts = list(accumulate(counts, initial=0))
    sample_numbers = draw_documents(receipt.key, firsts[-1], samples)
    # The reference's documents are drawn from the sample, so that no further file is read.
    by_reference = sample_numbers[draw_documents(receipt.key, len(sample_numbers), BY_REFERENCE)]
    readings = []
    for file, (line, first_document, count) in enumerate(zip(receipt.sources, firsts, counts, strict=False)):
        # The numbers ascend, so the numbers of one file are a slice.
        file_numbers, reference_numbers = (
            numbers[slice(*np.searchsorted(numbers, [first_document, first_document + count]))] - first_document
            for numbers in (sample_numbers, by_reference)
        )
        # Without sampling, a file without documents is read as well, to check its digest and bad rows.
        if len(file_numbers) or samples is None:
            readings.append(_Reading(line, file, first_document, file_numbers, reference_numbers))
    return readings


@dataclass(frozen=True)
class _Around:
    """The special tokens added around a text in the stream, and the maximum length of a document."""

    separator: int | None
    bos: int | None
    max_tokens: int | None

    def lay_out(self, ids: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Return a text's ids as laid out in the stream; empty if the text has no ids and no tokens are added."""
        before = [] if self.bos is None else [self.bos]
        after = [] if self.separator is None else [self.separator]
        # A truncated text leaves room for the added tokens, so that it ends like every other document.
        room = None if self.max_tokens is None else self.max_tokens - len(before) - len(after)
        # int64 is used instead of the stored dtype, because an id too large for it must differ, not wrap.
        return np.concatenate([np.array(before, np.int64), ids[:room].astype(np.int64), np.array(after, np.int64)])

    @property
    def is_bare(self) -> bool:
        """Whether no tokens are added around a text."""
        return self.separator is None and self.bos is None


@dataclass(frozen=True)
class _StreamLayout:
    """The stored stream, and the layout of texts in it."""

    tokens: NDArray[Any]
    ends: NDArray[np.uint64]
    around: _Around
    reference: Encode
    encode: Encode

    def expected_contents(self, texts: list[str], *, by_reference: bool) -> Iterator[NDArray[np.int64]]:
        """Return an iterator over each text's ids as laid out in the stream."""
        ids, offsets = (self.reference if by_reference else self.encode)(texts)
        return (self.around.lay_out(ids[start:stop]) for start, stop in pairwise(offsets.tolist()))

    def difference(self, document: int, expected: NDArray[np.int64]) -> str | None:
        """Describe how the stored document differs from the expected ids; None if they are equal."""
        if document >= len(self.ends):
            return f"would be document {document}, but the shard has {len(self.ends)}"
        start = int(self.ends[document - 1]) if document else 0
        stored_ids = self.tokens[start : int(self.ends[document])]
        if np.array_equal(stored_ids, expected):
            return None
        shared = min(len(stored_ids), len(expected))
        apart = np.flatnonzero(stored_ids[:shared] != expected[:shared])
        position = int(apart[0]) if len(apart) else shared
        return (
            f"document {document} has {count_of(len(stored_ids), 'stored token')}, but the reference produces "
            f"{len(expected)}; the first difference is at token offset {start + position}"
        )


def _differences(
    reading: _Reading,
    part: SourcePart,
    layout: _StreamLayout,
    fields: RecordFields,
    index: IndexCheck,
    selection: Selection,
    quarantined: list[tuple[int, int, str]],
) -> Iterator[str]:
    """Yield differences of one source file, read to its end: its wanted documents, count, digest and bad rows."""
    first_document = reading.first
    reader, selection = part.read_records(fields), selection.in_file(part.ruled_out, part.label)
    # A document that both engines encode must be reported only once.
    count, bad_records, reported_documents = 0, [], set[int]()
    # Without added tokens, a record without ids is not a document, and only encoding shows this.
    bare = layout.around.is_bare
    for block in reader:
        # A long check must report progress, or the limit for stalled processes would end it.
        alive()
        bad_records += [(bad_record.row, bad_record.byte, str(bad_record.reason)) for bad_record in block.bad]
        documents = selection.select(block).documents
        if bare:
            documents = with_tokens(documents, _lengths(documents, reading, layout, index)).documents
        for by_reference, numbers in ((False, reading.wanted), (True, reading.by_reference)):
            positions = numbers[slice(*np.searchsorted(numbers, [count, count + len(documents.texts)]))] - count
            texts = [documents.texts[position] for position in positions.tolist()]
            expected_ids = layout.expected_contents(texts, by_reference=by_reference) if texts else iter(())
            for position, ids in zip(positions.tolist(), expected_ids, strict=True):
                if count + position not in reported_documents and (
                    why := layout.difference(first_document + count + position, ids)
                ):
                    reported_documents.add(count + position)
                    yield f"{part.label}: row {documents.rows[position]}: {why}"
        yield from index.differences(documents, reading.file, first_document + count, part.label)
        count += len(documents.texts)
    if count != reading.line["documents"]:
        yield f"{part.label}: has {count_of(count, 'document')} now, but the receipt has {reading.line['documents']}"
    if bad_records != quarantined:
        yield f"{part.label}: {count_of(len(bad_records), 'bad record')}, at different positions than in {QUARANTINE}"
    if (digest := part.digests.digest_of(reader.sha256)) != reading.line["sha256"]:
        yield f"{part.label}: sha256 is {digest} now, but {reading.line['sha256']} in the receipt"


def _lengths(
    documents: FileDocuments, reading: _Reading, layout: _StreamLayout, index: IndexCheck
) -> NDArray[np.uint64]:
    """Return 1 for each document that has tokens, else 0; documents that the index does not contain are encoded."""
    indexed_rows = index.rows.rows(reading.file, reading.first, reading.first + int(reading.line["documents"]))
    has_tokens = np.isin(documents.rows, indexed_rows)
    for position in np.flatnonzero(~has_tokens).tolist():
        has_tokens[position] = len(next(layout.expected_contents([documents.texts[position]], by_reference=True))) > 0
    return has_tokens.astype(np.uint64)


def quarantined_rows(path: Path) -> dict[str, list[tuple[int, int, str]]]:
    """Return the bad rows that a shard omitted, in order: source file → row, byte and reason of each.

    Raises FormatError if a line is invalid.
    """
    rows_by_file: dict[str, list[tuple[int, int, str]]] = {}
    if not path.exists():
        return rows_by_file
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json_of(line)
                rows_by_file.setdefault(row["file"], []).append((row.get("row", 0), row.get("byte", -1), row["reason"]))
                # Without this comparison, different bytes with the same meaning would pass next to a rewritten receipt.
                if canonical_json(row) + b"\n" != line:
                    raise ValueError("it is not in the canonical form")
            except (ValueError, KeyError, TypeError) as error:
                raise FormatError(f"{path}: line {number}: invalid quarantined row: {error}. {REBUILD}") from error
    return rows_by_file


def load_plan_encoder(plan: StreamPlan) -> None:
    """Load the tokenizer and the encoder that check a plan's shards."""
    loaded_once(plan.tokenizer)
    encode_of(plan)


def encode_of(plan: StreamPlan) -> Encode:
    """Return the function that re-encodes a plan's documents.

    It is the plan's engine if its certificate is valid on this machine, else the reference.
    """
    try:
        return load_encoder(plan).encode
    except CertificateError:  # `engine_certified` reports it
        return ReferenceEngine(loaded_once(plan.tokenizer), plan.special_tokens).encode
