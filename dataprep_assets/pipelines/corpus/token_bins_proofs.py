"""Proofs on one shard of token bins: `tokens.bin`, `document_ends.bin`, `quarantine.jsonl` and the receipt.

Each proof recomputes from the bytes what the receipt claims. Files are mapped and read in blocks, so memory does not
grow with the shard. Offsets in messages are token offsets in the shard's stream unless a message says bytes.

From cheap to dear: `size_matches`, `ledger_balances`, `certificate_valid`, `eye_test`, `ids_in_vocabulary`,
`separators_match_documents`, `round_trip`.
"""

import json
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import FormatError, IntegrityError, TokenizerError
from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.graph.finding import SHOWN, Finding, Row, fact, judged, ledger_of, name_of, verdict
from dataprep_assets.graph.ledgers import unbalanced, wrong_drops, wrong_sums
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.token_bins import ENDS, QUARANTINE, TOKENS
from dataprep_assets.pipelines.corpus.token_stream import SourcePart
from dataprep_assets.sources.records import read_records
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import CLASSES, Certificate
from dataprep_assets.tokenization.engines import Encoded, ReferenceEngine, SpecialTokens

__all__ = [
    "certificate_valid",
    "eye_test",
    "ids_in_vocabulary",
    "ledger_balances",
    "round_trip",
    "separators_match_documents",
    "size_matches",
]

BLOCK = 1 << 20
"""Tokens looked at together; a few arrays of this many items is all the memory that a proof needs."""
WINDOW = 4096
"""Tokens of one window of the eye test."""
LONGEST_RUN = 512
"""Equal ids in a row from which a run is no text: the smallest hole of a file system is 1,024 uint32 ids."""
_REBUILD = "Delete the shard's directory and materialize it again"


@judged
def ledger_balances(directory: Path, receipt: Receipt) -> Finding:
    """Every row is a document or a drop with a reason: in total, for each source file, and in the quarantine."""
    ledger = ledger_of(receipt)
    dropped = sum(ledger.dropped.values())
    return verdict(
        _unbalanced(directory, receipt, ledger),
        f"{ledger.rows_in} rows are {ledger.documents} documents and {dropped} drops, in total and file by file.",
        _REBUILD,
        facts={
            "rows_in": ledger.rows_in,
            "documents": ledger.documents,
            "dropped": dropped,
            "tokens": ledger.tokens,
            "source_files": len(receipt.sources),
            **{f"dropped_{k}": v for k, v in ledger.dropped.items()},
        },
    )


def _unbalanced(directory: Path, receipt: Receipt, ledger: Ledger) -> Iterator[str]:
    name = name_of(receipt)
    yield from unbalanced(receipt)
    if ledger.separators != ledger.documents:
        yield f"{name}: the ledger has {ledger.separators} separators for {ledger.documents} documents"
    quarantined = _quarantined(directory / QUARANTINE)
    for line in receipt.sources:
        dropped = Counter(line["dropped"])
        if line["rows_in"] != line["documents"] + dropped.total():
            yield (
                f"{name}: source file {line['file']}: {line['rows_in']} rows in, but {line['documents']} documents "
                f"+ {dropped.total()} dropped"
            )
        held = quarantined.pop(line["file"], Counter())
        if +dropped != held:
            yield f"{name}: source file {line['file']}: dropped {dict(dropped)}, {QUARANTINE} holds {dict(held)}"
    for file, held in quarantined.items():
        yield f"{name}: {QUARANTINE} holds {held.total()} rows of {file}, which is no source file of this shard"
    yield from wrong_sums(receipt, receipt.sources, ("rows_in", "documents", "tokens"))
    yield from wrong_drops(receipt)


def _quarantined(path: Path) -> dict[str, Counter[str]]:
    """Rows of the quarantine by file and reason; no file is none. FormatError names the line that is not one."""
    found: dict[str, Counter[str]] = {}
    if not path.exists():
        return found
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                found.setdefault(row["file"], Counter())[row["reason"]] += 1
            except (ValueError, KeyError, TypeError) as error:
                raise FormatError(f"{path}: line {number} is not a quarantined row: {error}. {_REBUILD}") from error
    return found


@judged
def size_matches(directory: Path, receipt: Receipt) -> Finding:
    """The bin's size is tokens times item size, and the document ends are as many, in order, and end where it does."""
    ledger, dtype = ledger_of(receipt), fact(receipt, "dtype")
    width = flat_bins.token_dtype(dtype).itemsize
    size, expected = (directory / TOKENS).stat().st_size, ledger.tokens * width
    defects = []
    if size != expected:
        defects.append(
            f"{name_of(receipt)}: {TOKENS} has {size} bytes, but {ledger.tokens} {dtype} tokens are {expected}: "
            f"it is wrong from byte {min(size, expected)} on, at the latest"
        )
    documents = (directory / ENDS).stat().st_size / 8
    if documents != ledger.documents:
        defects.append(f"{name_of(receipt)}: {ENDS} has {documents:g} entries, the ledger {ledger.documents} documents")
    try:
        document_ends.validate(directory / ENDS, ledger.tokens)
    except FormatError as error:
        defects.append(str(error))
    return verdict(
        defects,
        f"{size} bytes are {ledger.tokens} {dtype} tokens in {ledger.documents} documents.",
        _REBUILD,
        facts={"bytes": size, "tokens": ledger.tokens, "documents": ledger.documents},
    )


@judged
def ids_in_vocabulary(directory: Path, receipt: Receipt, vocab_size: int) -> Finding:
    """Every id is below `vocab_size` (`len(tokenizer)`), and their range is the one in the ledger.

    A dtype that cannot hold the vocabulary is a defect even though all ids are then in range: they have wrapped.
    """
    ledger, dtype = ledger_of(receipt), fact(receipt, "dtype")
    tokens = flat_bins.open_tokens(directory / TOKENS, dtype)
    low: int | None = None
    high: int | None = None
    outside, first = 0, None
    for start in range(0, len(tokens), BLOCK):
        block = tokens[start : start + BLOCK]
        least, most = int(block.min()), int(block.max())
        low, high = least if low is None else min(low, least), most if high is None else max(high, most)
        if most >= vocab_size:
            wrong = np.flatnonzero(block >= vocab_size)
            outside += len(wrong)
            if first is None:
                first = start + int(wrong[0]), int(block[wrong[0]])
    defects = []
    if first is not None:
        defects.append(
            f"{name_of(receipt)}: id {first[1]} at token offset {first[0]} of {TOKENS} is not below {vocab_size}; "
            f"{outside} ids are not"
        )
    if flat_bins.token_dtype(dtype).itemsize < flat_bins.token_dtype(flat_bins.dtype_for_vocab(vocab_size)).itemsize:
        defects.append(f"{name_of(receipt)}: {dtype} cannot hold a vocabulary of {vocab_size}; larger ids have wrapped")
    if (low, high) != (ledger.min_id, ledger.max_id):
        defects.append(
            f"{name_of(receipt)}: ids are in [{low}, {high}], the ledger says [{ledger.min_id}, {ledger.max_id}]"
        )
    return verdict(
        defects,
        f"{len(tokens)} ids are in [{low}, {high}], below {vocab_size}.",
        _REBUILD,
        facts={
            "tokens": len(tokens),
            "vocab_size": vocab_size,
            "outside": outside,
            **({"min_id": low, "max_id": high} if low is not None and high is not None else {}),
        },
    )


@judged
def separators_match_documents(directory: Path, receipt: Receipt) -> Finding:
    """Each document ends with one separator (and starts with one BOS), and nothing else in the file is one.

    The file holds as many separators as documents plus the ledger's literal ones. Two separators or two BOS in a row
    mean that text was rendered with specials and given them again; only an empty document may look like that. When
    the text itself holds the doubled literal (`special_tokens: match`) the failure is a warning: bytes are as planned.
    """
    ledger = ledger_of(receipt)
    separator, bos = int(fact(receipt, "separator_id")), fact(receipt, "bos_id")
    tokens = flat_bins.open_tokens(directory / TOKENS, fact(receipt, "dtype"))
    ends = document_ends.open_ends(directory / ENDS)
    document_ends.validate(directory / ENDS, len(tokens))
    seen = _Boundaries(tokens, ends, separator, bos)
    seen.read_documents()
    seen.read_tokens()
    expected = len(ends) * (2 if bos == separator else 1) + ledger.literal_separators
    if seen.separators != expected:
        seen.defects.append(
            f"{TOKENS} holds {seen.separators} separators (id {separator}), expected {expected}: {len(ends)} documents "
            f"and {ledger.literal_separators} literal ones"
        )
    if seen.empty != ledger.empty_documents:
        seen.defects.append(f"{seen.empty} documents are empty, the ledger has {ledger.empty_documents}")
    todo = "The text holds its own specials: render it without them, or use `special_tokens: text`"
    from_text = not seen.defects and ledger.special_literals > 0 and fact(receipt, "special_tokens") == "match"
    return verdict(
        [f"{name_of(receipt)}: {d}" for d in seen.defects + seen.doubled],
        f"{len(ends)} documents end with id {separator}; {ledger.literal_separators} more come from text.",
        todo if from_text else _REBUILD,
        facts={
            "documents": len(ends),
            "separators": seen.separators,
            "literal_separators": ledger.literal_separators,
            "empty_documents": seen.empty,
            "doubled": seen.doubled_count,
        },
        warning=from_text,
    )


class _Boundaries:
    """Reads a shard twice, once at its document boundaries and once token by token, and keeps what it saw."""

    def __init__(self, tokens: NDArray[Any], ends: NDArray[np.uint64], separator: int, bos: int | None) -> None:
        self._tokens, self._ends, self._separator, self._bos = tokens, ends, separator, bos
        self._extra = 1 if bos is None else 2
        self.defects: list[str] = []
        self.doubled: list[str] = []
        self.doubled_count = self.separators = self.empty = 0

    def read_documents(self) -> None:
        """Look at the first and last token of every document."""
        previous = 0
        for first in range(0, len(self._ends), document_ends.BLOCK):
            ends = np.asarray(self._ends[first : first + document_ends.BLOCK]).astype(np.int64)
            starts = np.concatenate(([previous], ends[:-1]))
            previous = int(ends[-1])
            lengths = ends - starts
            self._note(first, starts, lengths < self._extra, f"has no room for its {self._extra} special tokens")
            whole = lengths >= self._extra
            self.empty += int(np.count_nonzero(lengths == self._extra))
            last = self._tokens[ends[whole] - 1]
            unended = _spread(whole, last != self._separator)
            self._note(first, starts, unended, f"does not end with separator {self._separator}")
            if self._bos is not None:
                begins = self._tokens[starts[whole]]
                self._note(first, starts, _spread(whole, begins != self._bos), f"does not start with BOS {self._bos}")

    def _note(self, first: int, starts: NDArray[np.int64], wrong: NDArray[np.bool_], what: str) -> None:
        where = np.flatnonzero(wrong)
        if len(where):
            index = int(where[0])
            self.defects.append(
                f"document {first + index} (from token offset {int(starts[index])}) {what}; {len(where)} documents "
                f"of {first} to {first + len(wrong) - 1} are like it"
            )

    def read_tokens(self) -> None:
        """Count separators, and find specials that follow themselves where no empty document explains it."""
        for start in range(0, len(self._tokens), BLOCK):
            # one token more than the block, so that a pair across two blocks is seen
            block = self._tokens[max(start - 1, 0) : start + BLOCK]
            is_separator = block == self._separator
            self.separators += int(np.count_nonzero(is_separator[min(start, 1) :]))
            pairs = np.flatnonzero(is_separator[1:] & is_separator[:-1]) + max(start - 1, 0) + 1
            self._note_doubled(pairs[~self._explained(pairs)], "separator", self._separator)
            if self._bos is not None and self._bos != self._separator:
                is_bos = block == self._bos
                self._note_doubled(np.flatnonzero(is_bos[1:] & is_bos[:-1]) + max(start - 1, 0) + 1, "BOS", self._bos)

    def _explained(self, seconds: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which pairs of separators, given by the offset of the second, are due to the layout."""
        if not len(seconds):
            return np.zeros(0, np.bool_)
        document = np.searchsorted(self._ends, seconds.astype(np.uint64), side="right")
        ends = np.asarray(self._ends[document]).astype(np.int64)
        starts = np.where(document > 0, np.asarray(self._ends[np.maximum(document, 1) - 1]).astype(np.int64), 0)
        begins, is_empty = np.equal(starts, seconds), np.equal(ends - starts, self._extra)
        combine = np.logical_or if self._bos == self._separator else np.logical_and
        explained: NDArray[np.bool_] = combine(begins, is_empty)
        return explained

    def _note_doubled(self, offsets: NDArray[np.intp], kind: str, token: int) -> None:
        self.doubled_count += len(offsets)
        for offset in offsets[: SHOWN - len(self.doubled)].tolist():
            document = int(np.searchsorted(self._ends, np.uint64(offset), side="right"))
            self.doubled.append(
                f"doubled {kind} (id {token}) at token offsets {offset - 1} and {offset}, document {document}"
            )


def _spread(mask: NDArray[np.bool_], values: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """`values` at the places where `mask` is True, False elsewhere."""
    spread = np.zeros(len(mask), np.bool_)
    spread[mask] = values
    return spread


@dataclass
class _Installed:
    """An engine by name and installed version, without its vocabulary."""

    name: str
    version: str

    def encode(self, texts: Sequence[str]) -> Encoded:
        raise TokenizerError(f"this is the identity of {self.name}, not the engine")


def _installed(name: str) -> _Installed:
    try:
        return _Installed(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        return _Installed(name, "not installed")


@judged
def certificate_valid(receipt: Receipt, bundle: TokenizerBundle, special_tokens: SpecialTokens) -> Finding:
    """The engine that wrote the shard was certified, for this tokenizer and mode and for the versions that ran.

    That other versions are installed here than the certificate names is a warning: the bytes were right when they were
    written, but a rerun would not be covered.
    """
    value, ledger, name = fact(receipt, "certificate"), ledger_of(receipt), name_of(receipt)
    try:
        certificate = Certificate.from_json(value)
    except (TypeError, KeyError) as error:
        raise IntegrityError(f"{name}: its receipt holds no engine certificate: {error}. {_REBUILD}") from error
    # with its own versions put in, only what decides ids is left to differ
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
    """What the receipt says was done that the certificate does not allow."""
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
) -> Finding:
    """Sampled documents, read again from their source files and encoded by the reference, are the stored ids.

    `sources` maps a source line's label to where that file lies now. At most two files are read, once each and to
    their end, so their digests and document counts are proven too. The choice is seeded by the receipt's key, so a
    failure repeats. Messages name file, row and token offset, and show neither text nor ids.
    """
    ends = document_ends.open_ends(directory / ENDS)
    tokens = flat_bins.open_tokens(directory / TOKENS, fact(receipt, "dtype"))
    document_ends.validate(directory / ENDS, len(tokens))
    rng = np.random.default_rng(int(digest_value(receipt.key)[:16], 16))
    firsts = list(accumulate((line["documents"] for line in receipt.sources), initial=0))
    chosen = _chosen(rng, receipt, samples)
    reference = ReferenceEngine(bundle, fact(receipt, "special_tokens"))
    layout = _Layout(tokens, ends, int(fact(receipt, "separator_id")), fact(receipt, "bos_id"), reference)
    defects: list[str] = []
    compared = 0
    for position, wanted in chosen.items():
        line = receipt.sources[position]
        if (part := sources.get(line["file"])) is None:
            defects.append(f"{line['file']}: the receipt names it as a source, but it is not among those given")
            continue
        compared += len(wanted)
        defects += _differences(part, line, wanted, firsts[position], layout, text_field)
    return verdict(
        (f"{name_of(receipt)}: {d}" for d in defects),
        f"{compared} documents of {len(chosen)} source files, encoded again by the reference, are the stored ids.",
        f"Source or shard changed since it was built: verify `snapshot`. {_REBUILD}",
        facts={"documents_compared": compared, "source_files_read": len(chosen), "documents": len(ends)},
    )


def _chosen(rng: np.random.Generator, receipt: Receipt, samples: int) -> dict[int, list[int]]:
    """Index of a source line → sorted indexes of documents in it; two lines at most, drawn by their documents."""
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
    separator: int
    bos: int | None
    reference: ReferenceEngine

    def difference(self, document: int, text: str) -> str | None:
        """How the stored document differs from the text's ids; None when it does not."""
        if document >= len(self.ends):
            return f"would be document {document}, the shard has {len(self.ends)}"
        start = int(self.ends[document - 1]) if document else 0
        stored = self.tokens[start : int(self.ends[document])]
        ids = self.reference.encode([text])[0]
        before = [] if self.bos is None else [self.bos]
        expected = np.array([*before, *ids.tolist(), self.separator], np.int64)
        if np.array_equal(stored, expected):
            return None
        shared = min(len(stored), len(expected))
        apart = np.flatnonzero(stored[:shared] != expected[:shared])
        at = int(apart[0]) if len(apart) else shared
        return (
            f"document {document} has {len(stored)} stored tokens, the reference gives {len(expected)}; they part at "
            f"token offset {start + at}"
        )


def _differences(
    part: SourcePart, line: Mapping[str, Any], wanted: list[int], first: int, layout: _Layout, text_field: str
) -> Iterator[str]:
    """Read one source file to its end, compare the wanted documents on the way, then its count and digest."""
    reader = read_records(
        part.path, format=part.format, compression=part.compression, text_field=text_field, label=part.label
    )
    done, left = 0, list(wanted)
    for block in reader:
        while left and left[0] < done + len(block.texts):
            index = left.pop(0) - done
            if why := layout.difference(first + done + index, block.texts[index]):
                yield f"{part.label}: row {block.row(index)}: {why}"
        done += len(block.texts)
    if done != line["documents"]:
        yield f"{part.label}: holds {done} documents now, the receipt says {line['documents']}"
    if reader.sha256 != line["sha256"]:
        yield f"{part.label}: sha256 of the file is {reader.sha256} now, the receipt says {line['sha256']}"


@judged
def eye_test(
    tokens_path: Path,
    ends_path: Path,
    dtype: str,
    bundle: TokenizerBundle,
    *,
    seed: int,
    windows: int = 6,
    sensitive: bool = False,
) -> Finding:
    """Windows of the stream, at its start and deep in, decode to text with the statistics of text.

    Wrong dtype or shifted bytes show as ids outside the vocabulary, one id at every other place or the entropy of
    noise; a hole shows as a run of id 0, for which the whole file is searched. These are errors anywhere. Unprintable,
    monotonous or repeated ids also occur in real documents (hex dumps, tables, indented code): they are an error in
    most windows, and a warning in a few. With `sensitive` no text is returned.
    """
    tokens, ends = flat_bins.open_tokens(tokens_path, dtype), document_ends.open_ends(ends_path)
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    defects: list[str] = []
    odd: list[str] = []
    odd_windows = 0
    for offset in _offsets(len(tokens), windows, rng):
        window = tokens[offset : offset + WINDOW]
        row = _statistics(window, bundle, rng)
        document = int(np.searchsorted(ends, np.uint64(offset), side="right"))
        shown = {k: v for k, v in row.items() if k != "text" or not sensitive}
        rows.append({"offset": offset, "document": document, **shown})
        place = f"{tokens_path.name}: window at token offset {offset} (document {document})"
        defects += [f"{place}: {why}" for why in _impossible(window, row, bundle.vocab_size)]
        unlikely = list(_unlikely(window, row))
        odd += [f"{place}: {why}" for why in unlikely]
        odd_windows += bool(unlikely)
    if hole := _hole(tokens):
        first, length = hole
        defects.append(f"{tokens_path.name}: {length} times id 0 in a row from token offset {first}: a hole")
    warning = not defects and 2 * odd_windows <= len(rows)
    return verdict(
        defects + odd,
        f"{len(rows)} windows of {len(tokens)} tokens decode to plausible text.",
        "Look at these documents: text can be like that, damage too"
        if warning
        else f"The bytes are not {dtype} ids of {bundle.name}, or are damaged: verify the digests. {_REBUILD}",
        warning=warning,
        facts={
            "tokens": len(tokens),
            "windows": len(rows),
            "odd_windows": odd_windows,
            **{f"least_{k}": min((float(r[k]) for r in rows), default=0.0) for k in ("bits_per_token", "printable")},
            "most_bits_per_token": max((float(r["bits_per_token"]) for r in rows), default=0.0),
        },
        table=rows,
    )


def _offsets(tokens: int, windows: int, rng: np.random.Generator) -> list[int]:
    """Where windows start: at 0, at the very end, and one at random in each even part between them."""
    last = max(tokens - WINDOW, 0)
    if not tokens:
        return []
    between = [int(last * (i + rng.random()) / max(windows - 2, 1)) for i in range(max(windows - 2, 0))]
    return sorted({0, *between, last} if windows > 1 else {0})


def _statistics(window: NDArray[Any], bundle: TokenizerBundle, rng: np.random.Generator) -> dict[str, Any]:
    """The numbers of one window, and the first of its text."""
    counts = np.unique(window, return_counts=True)[1]
    # of so many draws from the whole vocabulary: what noise of this length looks like
    noise = np.unique(rng.integers(0, bundle.vocab_size, len(window)), return_counts=True)[1]
    text = bundle.decode(window)
    return {
        "bits_per_token": round(_entropy(counts), 3),
        "noise_bits": round(_entropy(noise), 3),
        "printable": round(_printable(text), 4),
        "distinct": round(len(counts) / len(window), 4),
        "longest_run": _longest_run(window),
        "text": text.strip("\ufffd")[:200],
    }


def _impossible(window: NDArray[Any], row: Mapping[str, Any], vocab_size: int) -> Iterator[str]:
    """Why one window cannot be ids of text at all."""
    if outside := int(np.count_nonzero(window >= vocab_size)):
        yield f"{outside} of {len(window)} ids are not below {vocab_size}"
    if len(window) >= WINDOW // 4 and row["bits_per_token"] > 0.97 * row["noise_bits"]:
        yield f"{row['bits_per_token']} bits per token: noise over the vocabulary has {row['noise_bits']}"


def _unlikely(window: NDArray[Any], row: Mapping[str, Any]) -> Iterator[str]:
    """Why one window does not look like text; some documents do not either."""
    if row["printable"] < 0.7:
        yield f"only {row['printable']:.0%} of the decoded characters are printable"
    if row["longest_run"] >= LONGEST_RUN:
        yield f"one id {row['longest_run']} times in a row"
    if len(window) >= WINDOW // 4:
        if row["bits_per_token"] < 3.0:
            yield f"{row['bits_per_token']} bits per token: text has 6 to 11"
        halves = (window[::2], window[1::2])
        low, high = sorted(np.unique(half, return_counts=True)[1].max() / len(half) for half in halves)
        if high > 0.7 and low < 0.5:
            yield f"{high:.0%} of every other id are the same one, as in ids of another width"


def _entropy(counts: NDArray[np.intp]) -> float:
    """Bits per item of an empirical distribution."""
    shares = counts / counts.sum()
    return float(-(shares * np.log2(shares)).sum()) + 0.0


def _printable(text: str) -> float:
    """Share of characters that text has; 0 for none. Replacement characters at the edges are the window's own cuts."""
    counts = Counter(text.strip("\ufffd"))
    good = sum(
        n
        for c, n in counts.items()
        if c in "\t\n\r" or (c != "\ufffd" and unicodedata.category(c) not in ("Cc", "Cn", "Co", "Cs"))
    )
    return good / counts.total() if counts else 0.0


def _longest_run(window: NDArray[Any]) -> int:
    changes = np.flatnonzero(window[1:] != window[:-1]) + 1
    return int(np.diff(np.concatenate(([0], changes, [len(window)]))).max())


def _hole(tokens: NDArray[Any]) -> tuple[int, int] | None:
    """Offset and length of the first run of at least `LONGEST_RUN` zeros; length is counted up to one block.

    Such a run covers two neighbours of any two tokens half its length apart, so only those are compared first.
    """
    stride = LONGEST_RUN // 2
    for start in range(0, len(tokens), BLOCK):
        sampled = tokens[start : start + BLOCK + stride : stride]
        for index in np.flatnonzero((sampled[1:] == 0) & (sampled[:-1] == 0)).tolist():
            inside = start + index * stride
            if tokens[inside : inside + stride].any():
                continue
            low = max(inside - LONGEST_RUN, 0)
            around = np.flatnonzero(tokens[low : inside + BLOCK])
            before, after = around[around < inside - low], around[around >= inside - low]
            first = low + int(before[-1]) + 1 if len(before) else low
            stop = low + int(after[0]) if len(after) else min(inside + BLOCK, len(tokens))
            if stop - first >= LONGEST_RUN:
                return first, stop - first
    return None
