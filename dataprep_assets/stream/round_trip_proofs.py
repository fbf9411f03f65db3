"""Proofs that a shard's ids are the reference's: a certificate covers it, sampled documents encode to the same ids."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.documents.documents import Documents
from dataprep_assets.documents.selection import Selection, with_tokens
from dataprep_assets.errors import IntegrityError, TokenizerError
from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.formats.document_index import IDS, open_ids
from dataprep_assets.graph.finding import Finding, judged, ledger_of, name_of, verdict
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.sources.records import RecordFields
from dataprep_assets.stream.index_check import IndexCheck
from dataprep_assets.stream.token_shard import ENDS, TOKENS, TokenBinsFacts, document_rows
from dataprep_assets.stream.token_stream import SourcePart
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import CLASSES, Certificate
from dataprep_assets.tokenization.engines import Encoded, ReferenceEngine, SpecialTokens

_ALL = Selection(ids=None)
_REBUILD = "Delete the shard's directory and materialize it again"


@dataclass
class _Installed:
    """An engine by name and installed version, without its vocabulary."""

    name: str
    version: str

    def encode(self, texts: Sequence[str]) -> Encoded:
        raise TokenizerError(f"this is the identity of {self.name}, not the engine")


@cache
def _installed(name: str) -> _Installed:
    try:
        return _Installed(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        return _Installed(name, "not installed")


@judged
def certificate_valid(receipt: Receipt, bundle: TokenizerBundle, special_tokens: SpecialTokens) -> Finding:
    """The engine that wrote the shard was certified, for this tokenizer and mode and for the versions that ran.

    If the installed versions differ from the certificate's, that is a warning: the bytes were right when they were
    written, but the certificate would not cover a rerun.
    """
    value, ledger, name = TokenBinsFacts.of(receipt).certificate, ledger_of(receipt), name_of(receipt)
    try:
        certificate = Certificate.from_json(value)
    except (TypeError, KeyError) as error:
        raise IntegrityError(f"{name}: its receipt holds no engine certificate: {error}. {_REBUILD}") from error
    # with its own versions inserted, only what decides ids can differ
    own = _Installed(certificate.engine, certificate.engine_version)
    own_reference = _Installed(ReferenceEngine.name, certificate.reference_version)
    here, reference = _installed(certificate.engine), _installed(ReferenceEngine.name)
    drift = certificate.void_because(bundle, special_tokens, here, reference)
    defects = []
    decisive = certificate.tokenizer_digest != bundle.digest or certificate.special_tokens != special_tokens
    if decisive:
        void = certificate.void_because(bundle, special_tokens, own, own_reference)
        defects.append(f"{name}: the certificate is void: {void}")
    if (used := receipt.inputs.get("tokenizer")) != bundle.digest:
        defects.append(f"{name}: was encoded with tokenizer {used}, {bundle.name} is {bundle.digest}")
    defects += [f"{name}: {d}" for d in _uncovered(receipt, ledger, certificate)]
    warning = not defects and drift is not None
    if warning:
        defects.append(f"{name}: the certificate does not cover what is installed here: {drift}")
    compared = sum(certificate.compared.values())
    return verdict(
        defects,
        f"{certificate.engine} {certificate.engine_version} is certified on {compared} documents; "
        f"refused classes: {', '.join(certificate.refused) or 'none'}.",
        "Materialize `engine_certificate` again, then this shard",
        warning=warning,
        facts={
            "compared": compared,
            "refused": ", ".join(certificate.refused) or "none",
            "reference_documents": ledger.reference_documents,
            "sampled_documents": ledger.sampled_documents,
            "engine": f"{certificate.engine} {certificate.engine_version}",
            "certificate": certificate.id,
        },
    )


def _uncovered(receipt: Receipt, ledger: Ledger, certificate: Certificate) -> Iterator[str]:
    """What was done, by the receipt, that the certificate does not permit."""
    fast = not certificate.engine_is_refused
    for package, certified in (
        (certificate.engine, certificate.engine_version),
        (ReferenceEngine.name, certificate.reference_version),
    ):
        ran = receipt.measured.get("versions", {}).get(package, certified)
        if fast and ran != certified:
            yield f"was encoded with {package} {ran}, the certificate covers {certified}"
    if fast and not certificate.compared:
        yield f"{certificate.engine} was used, but its certificate compared no document"
    if not fast and ledger.reference_documents != ledger.documents:
        yield (
            f"{certificate.engine} is refused for all of {', '.join(CLASSES)}, but the reference encoded only "
            f"{ledger.reference_documents} of {ledger.documents} documents"
        )
    if not certificate.refused and ledger.reference_documents:
        yield f"no class is refused, but {ledger.reference_documents} documents went to the reference"


@judged
def round_trip(
    directory: Path,
    receipt: Receipt,
    sources: Mapping[str, SourcePart],
    bundle: TokenizerBundle,
    *,
    samples: int = 16,
    text_field: str = "text",
    selection: Selection = _ALL,
    max_tokens: int | None = None,
) -> Finding:
    """Sampled documents, read again from their source files and encoded by the reference, are the stored ids.

    `sources` maps a source line's label to the present file. At most two files are read, once each and to their end, so
    their digests and document counts are proven too, and the index of all their documents: its rows and, if `selection`
    identifies them, its ids. Records that `selection` drops are not in the shard; documents are cut to `max_tokens`, as
    the stream's plan says. The choice is seeded by the receipt's key, so that a failure is repeatable. Messages name
    file, row and token offset, and show neither text nor ids.
    """
    facts = TokenBinsFacts.of(receipt)
    ends = document_ends.open_ends(directory / ENDS)
    tokens = flat_bins.open_tokens(directory / TOKENS, facts.dtype)
    document_ends.validate(directory / ENDS, len(tokens))
    rng = np.random.default_rng(int(digest_value(receipt.key)[:16], 16))
    firsts = list(accumulate((line["documents"] for line in receipt.sources), initial=0))
    chosen = _chosen(rng, receipt, samples)
    reference = ReferenceEngine(bundle, facts.special_tokens)
    layout = _Layout(tokens, ends, facts.separator_id, facts.bos_id, max_tokens, reference)
    ids = selection.ids
    stored = open_ids(directory / IDS, len(ends)) if ids is not None else None
    fields = RecordFields(text_field, ids.id_field if ids is not None else None)
    index = IndexCheck(document_rows(directory, receipt), ids, stored)
    defects: list[str] = []
    compared = 0
    for position, wanted in chosen.items():
        line = receipt.sources[position]
        if (part := sources.get(line["file"])) is None:
            defects.append(f"{line['file']}: the receipt names it as a source, but it is not among those given")
            continue
        compared += len(wanted)
        reading = _Reading(part, line, position, firsts[position])
        defects += _differences(reading, wanted, layout, fields, index, selection)
    return verdict(
        (f"{name_of(receipt)}: {d}" for d in defects),
        f"{compared} documents of {len(chosen)} source files, encoded again by the reference, are the stored ids.",
        f"Source or shard changed since it was built: verify `snapshot`. {_REBUILD}",
        facts={"documents_compared": compared, "source_files_read": len(chosen), "documents": len(ends)},
    )


def _chosen(rng: np.random.Generator, receipt: Receipt, samples: int) -> dict[int, list[int]]:
    """Index of a source line → sorted indices of documents in it; two lines at most, drawn by their documents."""
    weights = np.array([line["documents"] for line in receipt.sources], np.float64)
    filled = int(np.count_nonzero(weights))
    if not filled:
        return {}
    lines = rng.choice(len(weights), min(2, filled), replace=False, p=weights / weights.sum())
    share = -(-samples // len(lines))
    return {
        int(i): sorted(rng.choice(int(weights[i]), min(share, int(weights[i])), replace=False).tolist())
        for i in sorted(lines.tolist())
    }


@dataclass(frozen=True)
class _Layout:
    """The stored stream, and how a text is laid out in it."""

    tokens: NDArray[Any]
    ends: NDArray[np.uint64]
    separator: int | None
    bos: int | None
    max_tokens: int | None
    reference: ReferenceEngine

    def expected(self, text: str) -> NDArray[np.int64]:
        """What a text is in the stream; nothing if it has no tokens and none are put around it."""
        before = [] if self.bos is None else [self.bos]
        after = [] if self.separator is None else [self.separator]
        room = None if self.max_tokens is None else self.max_tokens - len(before) - len(after)
        return np.array([*before, *self.reference.encode([text])[0].tolist()[:room], *after], np.int64)

    def difference(self, document: int, text: str) -> str | None:
        """How the stored document differs from the text's ids; None when it does not."""
        if document >= len(self.ends):
            return f"would be document {document}, the shard has {len(self.ends)}"
        start = int(self.ends[document - 1]) if document else 0
        stored = self.tokens[start : int(self.ends[document])]
        expected = self.expected(text)
        if np.array_equal(stored, expected):
            return None
        shared = min(len(stored), len(expected))
        apart = np.flatnonzero(stored[:shared] != expected[:shared])
        at = int(apart[0]) if len(apart) else shared
        return (
            f"document {document} has {len(stored)} stored tokens, the reference gives {len(expected)}; they part at "
            f"token offset {start + at}"
        )


@dataclass(frozen=True)
class _Reading:
    """A source file to read again, its line in the receipt, its number there, and its first document."""

    part: SourcePart
    line: Mapping[str, Any]
    file: int
    first: int


def _differences(
    reading: _Reading,
    wanted: list[int],
    layout: _Layout,
    fields: RecordFields,
    index: IndexCheck,
    selection: Selection,
) -> Iterator[str]:
    """Read one source file to its end, compare the wanted documents on the way, then its count and digest."""
    part, first = reading.part, reading.first
    reader, selection = part.read_records(fields), selection.in_file(part.ruled_out, part.label)
    done, left = 0, list(wanted)
    # a record without tokens is no document where nothing is put around one: encoding tells
    bare = layout.separator is None and layout.bos is None
    for block in reader:
        documents = selection.of(block).documents
        if bare:
            documents = with_tokens(documents, _lengths(documents, reading, layout, index)).documents
        while left and left[0] < done + len(documents.texts):
            at = left.pop(0) - done
            if why := layout.difference(first + done + at, documents.texts[at]):
                yield f"{part.label}: row {documents.rows[at]}: {why}"
        yield from index.differences(documents, reading.file, first + done, part.label)
        done += len(documents.texts)
    if done != reading.line["documents"]:
        yield f"{part.label}: holds {done} documents now, the receipt says {reading.line['documents']}"
    if (digest := part.digests.of(reader.sha256)) != reading.line["sha256"]:
        yield f"{part.label}: sha256 of the file is {digest} now, the receipt says {reading.line['sha256']}"


def _lengths(documents: Documents, reading: _Reading, layout: _Layout, index: IndexCheck) -> NDArray[np.uint64]:
    """Whether each document has tokens, as numbers; those that the index does not know are encoded."""
    held = index.rows.rows(reading.file, reading.first, reading.first + int(reading.line["documents"]))
    known = np.isin(documents.rows, held)
    for at in np.flatnonzero(~known).tolist():
        known[at] = len(layout.expected(documents.texts[at])) > 0
    return known.astype(np.uint64)
