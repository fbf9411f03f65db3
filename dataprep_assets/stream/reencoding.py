"""Checks that a shard has the reference's ids: its engine is certified, and its documents are encoded again."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.bounds import load_untrusted_json, report_progress
from dataprep_assets.curation.documents import FileDocuments
from dataprep_assets.curation.selection import Selection, drop_empty
from dataprep_assets.engine.checks.check import (
    BY_REFERENCE,
    EVERY_DOCUMENT,
    REBUILD,
    SAMPLE,
    SAMPLED,
    Finding,
    build_verdict,
    describe_artifact,
    draw_documents,
    fail_on_errors,
    require_ledger,
)
from dataprep_assets.errors import CertificateError, FormatError, IntegrityError, TokenizerError, count_of
from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.formats.document_index import IDS, ROWS, SourceRowIndex, open_ids
from dataprep_assets.integrity.receipt import Ledger, Receipt, find_installed_version
from dataprep_assets.stores.files import canonical_json
from dataprep_assets.stream.token_shard import ENDS, QUARANTINE, TOKENS, TokenBinsFacts, build_document_rows
from dataprep_assets.stream.token_stream import SourcePart, StreamPlan, load_encoder
from dataprep_assets.tokenization.bundle import TokenizerBundle, load_cached
from dataprep_assets.tokenization.certificate import CLASSES, Certificate
from dataprep_assets.tokenization.document_ids import DocumentIds
from dataprep_assets.tokenization.engines import EncodedTexts, ReferenceEngine, SpecialTokens

if TYPE_CHECKING:
    from dataprep_assets.sources.readers.records import RecordFields


@dataclass(frozen=True)
class IndexCheck:
    """A document index to compare documents with.

    Attributes:
        rows: The source row of each document.
        ids: How document ids are computed; None: compare only rows.
        stored: The ids in `document_ids.bin`, shape `(documents,)`, uint64; None if this file does not exist.
    """

    rows: SourceRowIndex
    ids: DocumentIds | None
    stored: NDArray[np.uint64] | None

    def find_differences(self, documents: FileDocuments, file: int, first: int, label: str) -> Iterator[str]:
        """Yield differences between the index and some documents of a source file, at most one per kind.

        Args:
            documents: The documents as read from the file, identified by `ids`.
            file: The file's number in the stream.
            first: Number, in the stream, of the first document.
            label: The file's name in messages.
        """
        # Compare only the index's documents, because a source that has grown has more documents. The caller compares
        # the counts.
        count = max(0, min(len(documents.texts), self.rows.documents - first))
        file_rows = documents.rows[:count]
        if len(wrong_positions := np.flatnonzero(self.rows.find_rows(file, first, first + count) != file_rows)):
            yield (
                f"{label}: row {file_rows[wrong_positions[0]]}: {ROWS} has a different row for document "
                f"{first + int(wrong_positions[0])}"
            )
        if documents.ids is None or self.stored is None:
            return
        if len(wrong_positions := np.flatnonzero(self.stored[first : first + count] != documents.ids[:count])):
            yield (
                f"{label}: row {file_rows[wrong_positions[0]]}: {IDS} has a different id for document "
                f"{first + int(wrong_positions[0])}"
            )


_ALL = Selection(ids=None)


@dataclass
class _InstalledEngine:
    """An engine by name and installed version, without its vocabulary."""

    name: str
    version: str

    def encode(self, texts: Sequence[str]) -> EncodedTexts:
        raise TokenizerError(f"{self.name} cannot encode, because only its identity is loaded")


@cache
def _load_installed_engine(name: str) -> _InstalledEngine:
    return _InstalledEngine(name, find_installed_version(name) or "not installed")


@fail_on_errors
def engine_certified(receipt: Receipt, bundle: TokenizerBundle, special_tokens: SpecialTokens) -> Finding:
    """Check that the shard's engine was certified for this tokenizer, this mode and the versions that ran.

    Installed versions that differ from the certificate's are only a warning: the bytes were right when they were
    written, but the certificate would not cover a rerun.
    """
    value, ledger, name = (
        TokenBinsFacts.from_receipt(receipt).certificate,
        require_ledger(receipt),
        describe_artifact(receipt),
    )
    try:
        certificate = Certificate.from_json(value)
    except (TypeError, KeyError) as error:
        raise IntegrityError(f"{name}: its receipt has no valid engine certificate: {error}. {REBUILD}") from error
    # These objects have the certificate's own versions, so that the explanation of a defect does not mention different
    # installed versions, which are only a warning.
    own_engine = _InstalledEngine(certificate.engine, certificate.engine_version)
    own_reference = _InstalledEngine(ReferenceEngine.name, certificate.reference_version)
    installed_engine, reference = (
        _load_installed_engine(certificate.engine),
        _load_installed_engine(ReferenceEngine.name),
    )
    drift = certificate.explain_invalidity(bundle, special_tokens, installed_engine, reference)
    defects = []
    decisive = certificate.tokenizer_digest != bundle.digest or certificate.special_tokens != special_tokens
    if decisive:
        void = certificate.explain_invalidity(bundle, special_tokens, own_engine, own_reference)
        defects.append(f"{name}: the engine certificate is void: {void}")
    if (used_digest := receipt.inputs.get("tokenizer")) != bundle.digest:
        defects.append(
            f"{name}: was encoded with tokenizer {used_digest}, but {bundle.name} has the digest {bundle.digest}"
        )
    defects += [f"{name}: {d}" for d in _find_uncertified_actions(receipt, ledger, certificate)]
    warning = not defects and drift is not None
    if warning:
        defects.append(f"{name}: the certificate does not cover the installed versions: {drift}")
    documents = sum(certificate.compared.values())
    return build_verdict(
        defects,
        f"{certificate.engine} {certificate.engine_version} was certified with {count_of(documents, 'document')}; "
        f"refused classes: {', '.join(certificate.refused) or 'none'}.",
        "Rebuild `engine_certificate`, then this shard",
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


def _find_uncertified_actions(receipt: Receipt, ledger: Ledger, certificate: Certificate) -> Iterator[str]:
    """Yield actions recorded in the receipt that the certificate does not permit."""
    fast = not certificate.engine_is_refused
    for package, certified in (
        (certificate.engine, certificate.engine_version),
        (ReferenceEngine.name, certificate.reference_version),
    ):
        # If a receipt does not record the version, assume the certified version, so that only a recorded difference is
        # reported.
        ran = receipt.measured.get("versions", {}).get(package, certified)
        if fast and ran != certified:
            yield f"was encoded with {package} {ran}, but the certificate covers {certified}"
    if fast and not certificate.compared:
        yield f"{certificate.engine} was used, but its certification compared no documents"
    if not fast and ledger.reference_documents != ledger.documents:
        yield (
            f"{certificate.engine} is refused for all classes ({', '.join(CLASSES)}), but the reference encoded only "
            f"{ledger.reference_documents:,} of {count_of(ledger.documents, 'document')}"
        )
    if not certificate.refused and ledger.reference_documents:
        yield f"no class is refused, but the reference encoded {count_of(ledger.reference_documents, 'document')}"


Encode = Callable[[list[str]], EncodedTexts]
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
        samples: Number of documents, spread across the shard; None: every document of every file.
        encode: Encodes all documents except a few, which the reference encodes; None: the reference encodes all.
        text_field: Field of a record that contains its text.
        selection: Decides which records become documents; records that it drops are not in the shard.
        max_tokens: Maximum length of a document in tokens, from the stream's plan.
    """
    from dataprep_assets.sources.readers.records import RecordFields

    facts = TokenBinsFacts.from_receipt(receipt)
    ends = document_ends.open_ends(directory / ENDS)
    tokens = flat_bins.open_tokens(directory / TOKENS, facts.dtype)
    document_ends.validate(directory / ENDS, len(tokens))
    readings = _choose_files(receipt, samples)
    reference = ReferenceEngine(bundle, facts.special_tokens)
    around = _AddedTokens(facts.separator_id, facts.bos_id, max_tokens)
    layout = _StreamLayout(tokens, ends, around, reference.encode, encode or reference.encode)
    ids = selection.ids
    stored_ids = open_ids(directory / IDS, len(ends)) if ids is not None else None
    fields = RecordFields(text_field, ids.id_field if ids is not None else None)
    index = IndexCheck(build_document_rows(directory, receipt), ids, stored_ids)
    quarantined = read_quarantined_rows(directory / QUARANTINE)
    defects: list[str] = []
    compared_documents = 0
    for reading in readings:
        label = reading.line["file"]
        if (part := sources.get(label)) is None:
            defects.append(f"{label}: is listed in the receipt, but missing")
            continue
        compared_documents += len(reading.wanted)
        defects += _find_differences(reading, part, layout, fields, index, selection, quarantined.get(label, []))
    scope = "every document" if samples is None else count_of(compared_documents, "document")
    return build_verdict(
        (f"{describe_artifact(receipt)}: {d}" for d in defects),
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
class _RereadFile:
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


def _choose_files(receipt: Receipt, samples: int | None) -> list[_RereadFile]:
    """Return the files to read again: the files of the drawn documents, or all files if `samples` is None."""
    counts = [int(line["documents"]) for line in receipt.sources]
    firsts = list(accumulate(counts, initial=0))
    sample_numbers = draw_documents(receipt.key, firsts[-1], samples)
    # Draw the documents for the reference from the sample, so that no additional file must be read.
    by_reference = sample_numbers[draw_documents(receipt.key, len(sample_numbers), BY_REFERENCE)]
    readings = []
    for file, (line, first_document, count) in enumerate(zip(receipt.sources, firsts, counts, strict=False)):
        # The document numbers are sorted, so the numbers of one file are a contiguous slice.
        file_numbers, reference_numbers = (
            numbers[slice(*np.searchsorted(numbers, [first_document, first_document + count]))] - first_document
            for numbers in (sample_numbers, by_reference)
        )
        # Without sampling, also read a file without documents, to check its digest and bad rows.
        if len(file_numbers) or samples is None:
            readings.append(_RereadFile(line, file, first_document, file_numbers, reference_numbers))
    return readings


@dataclass(frozen=True)
class _AddedTokens:
    """The special tokens added around a text in the stream, and the maximum length of a document."""

    separator: int | None
    bos: int | None
    max_tokens: int | None

    def lay_out(self, ids: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Return a text's ids as laid out in the stream; empty if the text has no ids and no tokens are added."""
        prefix = [] if self.bos is None else [self.bos]
        suffix = [] if self.separator is None else [self.separator]
        # Leave room for the added tokens, because a truncated document also begins and ends with them.
        room = None if self.max_tokens is None else self.max_tokens - len(prefix) - len(suffix)
        # Use int64, because in the stored dtype an id that is too large would wrap and could equal the stored id.
        return np.concatenate([np.array(prefix, np.int64), ids[:room].astype(np.int64), np.array(suffix, np.int64)])

    @property
    def is_bare(self) -> bool:
        """Whether no tokens are added around a text."""
        return self.separator is None and self.bos is None


@dataclass(frozen=True)
class _StreamLayout:
    """The stored stream, and the layout of texts in it."""

    tokens: NDArray[Any]
    ends: NDArray[np.uint64]
    around: _AddedTokens
    reference: Encode
    encode: Encode

    def iterate_ids(self, texts: list[str], *, by_reference: bool) -> Iterator[NDArray[np.int64]]:
        """Return an iterator over each text's ids as laid out in the stream."""
        ids, offsets = (self.reference if by_reference else self.encode)(texts)
        return (self.around.lay_out(ids[start:stop]) for start, stop in pairwise(offsets.tolist()))

    def describe_difference(self, document: int, expected_ids: NDArray[np.int64]) -> str | None:
        """Describe how the stored document differs from the expected ids; None if they are equal."""
        if document >= len(self.ends):
            return f"would be document {document}, but the shard has only {count_of(len(self.ends), 'document')}"
        start = int(self.ends[document - 1]) if document else 0
        stored_ids = self.tokens[start : int(self.ends[document])]
        if np.array_equal(stored_ids, expected_ids):
            return None
        shared = min(len(stored_ids), len(expected_ids))
        positions = np.flatnonzero(stored_ids[:shared] != expected_ids[:shared])
        position = int(positions[0]) if len(positions) else shared
        return (
            f"document {document} has {count_of(len(stored_ids), 'stored token')}, but the reference produces "
            f"{len(expected_ids)}; the first difference is at token offset {start + position}"
        )


def _find_differences(
    reading: _RereadFile,
    part: SourcePart,
    layout: _StreamLayout,
    fields: "RecordFields",
    index: IndexCheck,
    selection: Selection,
    quarantined: list[tuple[int, int, str]],
) -> Iterator[str]:
    """Yield differences between a source file and the shard: chosen documents, document count, digest, bad rows."""
    first_document = reading.first
    reader, selection = part.read_records(fields), selection.limit_to_file(part.ruled_out, part.label)
    # Remember reported documents, because a document that both engines encode must be reported only once.
    count, bad_records, reported_documents = 0, [], set[int]()
    # If no tokens are added, a record without ids is not a document, and only encoding shows whether a record has ids.
    bare = layout.around.is_bare
    for block in reader:
        # Report progress, because a process is considered stalled and is stopped if it reports nothing for a long time.
        report_progress()
        bad_records += [(bad_record.row, bad_record.byte, str(bad_record.reason)) for bad_record in block.bad]
        documents = selection.select(block).documents
        if bare:
            documents = drop_empty(documents, _measure_lengths(documents, reading, layout, index)).documents
        for by_reference, numbers in ((False, reading.wanted), (True, reading.by_reference)):
            positions = numbers[slice(*np.searchsorted(numbers, [count, count + len(documents.texts)]))] - count
            texts = [documents.texts[position] for position in positions.tolist()]
            expected_ids = layout.iterate_ids(texts, by_reference=by_reference) if texts else iter(())
            for position, ids in zip(positions.tolist(), expected_ids, strict=True):
                if count + position not in reported_documents and (
                    reason := layout.describe_difference(first_document + count + position, ids)
                ):
                    reported_documents.add(count + position)
                    yield f"{part.label}: row {documents.rows[position]}: {reason}"
        yield from index.find_differences(documents, reading.file, first_document + count, part.label)
        count += len(documents.texts)
    if count != reading.line["documents"]:
        yield f"{part.label}: has {count_of(count, 'document')}, but the receipt has {reading.line['documents']}"
    if bad_records != quarantined:
        yield (
            f"{part.label}: has {count_of(len(bad_records), 'bad record')}, but {QUARANTINE} lists different rows, "
            "positions or reasons"
        )
    if (digest := part.digests.digest_of(reader.sha256)) != reading.line["sha256"]:
        yield f"{part.label}: expected sha256 {reading.line['sha256']}, but found {digest}"


def _measure_lengths(
    documents: FileDocuments, reading: _RereadFile, layout: _StreamLayout, index: IndexCheck
) -> NDArray[np.uint64]:
    """Return 1 for each document that has tokens, else 0; documents missing in the index are encoded to find out."""
    indexed_rows = index.rows.find_rows(reading.file, reading.first, reading.first + int(reading.line["documents"]))
    has_tokens = np.isin(documents.rows, indexed_rows)
    for position in np.flatnonzero(~has_tokens).tolist():
        has_tokens[position] = len(next(layout.iterate_ids([documents.texts[position]], by_reference=True))) > 0
    return has_tokens.astype(np.uint64)


def read_quarantined_rows(path: Path) -> dict[str, list[tuple[int, int, str]]]:
    """Return the bad rows that a shard omitted, in order: source file → row, byte and reason of each.

    Raises FormatError if a line is invalid.
    """
    rows_by_file: dict[str, list[tuple[int, int, str]]] = {}
    if not path.exists():
        return rows_by_file
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = load_untrusted_json(line)
                rows_by_file.setdefault(row["file"], []).append((row.get("row", 0), row.get("byte", -1), row["reason"]))
                # Require canonical JSON, because a line with the same values in different bytes would pass the other
                # checks if the receipt had been rewritten to match.
                if canonical_json(row) + b"\n" != line:
                    raise ValueError("the row is not in canonical form")
            except (ValueError, KeyError, TypeError) as error:
                raise FormatError(f"{path}: line {number}: invalid quarantined row: {error}. {REBUILD}") from error
    return rows_by_file


def load_plan_encoder(plan: StreamPlan) -> None:
    """Load the tokenizer and the encoder that check a plan's shards."""
    load_cached(plan.tokenizer)
    build_encode_function(plan)


def build_encode_function(plan: StreamPlan) -> Encode:
    """Return the function that re-encodes a plan's documents.

    It is the plan's engine if its certificate is valid on this machine, else the reference.
    """
    try:
        return load_encoder(plan).encode
    except CertificateError:  # the check `engine_certified` reports the invalid certificate
        return ReferenceEngine(load_cached(plan.tokenizer), plan.special_tokens).encode
