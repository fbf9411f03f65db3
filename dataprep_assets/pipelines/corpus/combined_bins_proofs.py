"""Proofs on the combined bins of a split: `<split>.bin`, `document_ends.bin`, `meta.pkl`, `meta.json` and the receipt.

They hold the combined artifact against the shards that it was joined from, against the manifest and against the
tokenizer, and read it the way a trainer will. Files are mapped or read in blocks; memory does not grow with the split.

Entry points: `equals_shards`, `wrong_totals`, `sources_complete`, `meta_matches`, `alignment`, `sampler_dry_run`,
`shuffle_quality`, `source_run_length`.
"""

import hashlib
import io
import math
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import FormatError
from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.formats.meta import read_meta
from dataprep_assets.graph.finding import SHOWN, Finding, Row, first_of, judged, ledger_of, name_of, verdict
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.token_bins import ENDS, TOKENS
from dataprep_assets.planning.manifest import ManifestEntry
from dataprep_assets.tokenization.bundle import TokenizerBundle

__all__ = [
    "alignment",
    "equals_shards",
    "meta_matches",
    "sampler_dry_run",
    "shuffle_quality",
    "source_run_length",
    "sources_complete",
    "wrong_totals",
]

META_BYTES = 1 << 20
"""A `meta.pkl` is a few hundred bytes; a larger one is not read."""
_BLOCK = 4 << 20
_REBUILD = "Materialize `combined_bins` of this split again"

Shards = Sequence[tuple[Path, Receipt]]
"""Directory and receipt of each shard of the split, in manifest order."""


@judged
def equals_shards(directory: Path, receipt: Receipt, shards: Shards, *, split: str) -> Finding:
    """The combined file is the shards, byte for byte and in order, and so are its document ends.

    One pass over the combined file gives the digest of each shard's range and of the whole; the shards themselves are
    read only where a range differs, to name the byte. Document ends are compared with the shards', moved up.
    """
    path = directory / f"{split}.bin"
    claimed = receipt.file(path.name).sha256
    size, expected = path.stat().st_size, sum(r.file(TOKENS).bytes for _, r in shards)
    defects = []
    if size != expected:
        defects.append(f"{path.name}: has {size} bytes, its {len(shards)} shards have {expected}")
    ranges, whole = _range_digests(path, [r.file(TOKENS).bytes for _, r in shards])
    start = 0
    for (shard, of_shard), digest in zip(shards, ranges, strict=True):
        record = of_shard.file(TOKENS)
        if digest != record.sha256:
            where = _first_difference(path, start, shard / TOKENS, record.bytes)
            stop = start + record.bytes
            defects.append(f"{path.name}: bytes {start} to {stop} are not shard {name_of(of_shard)}: {where}")
        start += record.bytes
    if whole != claimed:
        defects.append(f"{path.name}: sha256 {whole}, the receipt of {name_of(receipt)} says {claimed}")
    if not defects:
        defects += _differing_ends(directory / ENDS, shards)
    return verdict(
        defects,
        f"{path.name} is its {len(shards)} shards, {size} bytes, in order.",
        _REBUILD,
        facts={"bytes": size, "shards": len(shards), "shard_bytes": expected},
    )


def _range_digests(path: Path, sizes: Sequence[int]) -> tuple[list[str], str]:
    """SHA-256 of consecutive ranges of a file, and of all of it, in one pass. A range beyond the end is short."""
    whole = hashlib.sha256()
    ranges = []
    with open(path, "rb", buffering=0) as file:
        for size in sizes:
            part, left = hashlib.sha256(), size
            while left and (data := file.read(min(left, _BLOCK))):
                part.update(data)
                whole.update(data)
                left -= len(data)
            ranges.append(part.hexdigest())
        while data := file.read(_BLOCK):
            whole.update(data)
    return ranges, whole.hexdigest()


def _first_difference(path: Path, start: int, shard: Path, size: int) -> str:
    """Where a range of the combined file leaves the shard's own file, in words."""
    if not shard.is_file():
        return f"{shard} is missing, so the byte cannot be named"
    with open(path, "rb") as combined, open(shard, "rb") as own:
        combined.seek(start)
        done = 0
        while done < size:
            ours, theirs = combined.read(min(_BLOCK, size - done)), own.read(min(_BLOCK, size - done))
            shared = min(len(ours), len(theirs))
            apart = np.flatnonzero(np.frombuffer(ours, np.uint8, shared) != np.frombuffer(theirs, np.uint8, shared))
            if len(apart) or len(ours) != len(theirs) or not shared:
                at = done + (int(apart[0]) if len(apart) else shared)
                return f"they part at byte {start + at}, byte {at} of the shard"
            done += shared
    return "they are equal, so the shard itself is not what its receipt says: verify the shard"


def _differing_ends(path: Path, shards: Shards) -> Iterator[str]:
    ends = document_ends.open_ends(path)
    document = offset = 0
    for shard, receipt in shards:
        own = document_ends.open_ends(shard / ENDS)
        for first in range(0, len(own), document_ends.BLOCK):
            expected = own[first : first + document_ends.BLOCK] + np.uint64(offset)
            held = ends[document : document + len(expected)]
            if not np.array_equal(held, expected):
                apart = np.flatnonzero(held != expected[: len(held)])
                at = document + (int(apart[0]) if len(apart) else len(held))
                yield f"{path.name}: differs from shard {name_of(receipt)} at document {at} (byte {at * 8})"
                return
            document += len(expected)
        offset += ledger_of(receipt).tokens
    if len(ends) != document:
        yield f"{path.name}: has {len(ends)} documents, its shards have {document}"


@judged
def wrong_totals(receipt: Receipt, shards: Shards) -> Finding:
    """The combined ledger is the sum of the shards' ledgers, count by count."""
    held = ledger_of(receipt).to_json()
    summed = Ledger.total(ledger_of(r) for _, r in shards).to_json()
    return verdict(
        (
            f"{name_of(receipt)}: {k}: the ledger says {held[k]}, its {len(shards)} shards sum to {v}"
            for k, v in summed.items()
            if _counts(held[k]) != _counts(v)
        ),
        f"The ledger is the sum of {len(shards)} shards: {summed['documents']} documents, {summed['tokens']} tokens.",
        _REBUILD,
        facts={
            "shards": len(shards),
            "rows_in": summed["rows_in"],
            "documents": summed["documents"],
            "tokens": summed["tokens"],
            "dropped": sum(summed["dropped"].values()),
        },
    )


def _counts(value: Any) -> Any:
    """A reason that dropped nothing is no difference."""
    return {k: v for k, v in value.items() if v} if isinstance(value, dict) else value


@judged
def sources_complete(receipts: Sequence[Receipt], entries: Sequence[ManifestEntry], split: str) -> Finding:
    """The shards hold each manifest file of the split exactly once, in order, and no file of another split.

    `entries` are those of the whole manifest. A file counts as another split's by its ordinal, its path or, where the
    manifest knows digests, its bytes: a copy of a train file under a validation path leaks as well.
    """
    by_ordinal = {e.ordinal: e for e in entries}
    foreign = {e.sha256: e for e in entries if e.split != split and e.sha256}
    by_path = {e.relpath: e for e in entries}
    seen: dict[int, str] = {}
    defects = []
    previous = -1
    for receipt in receipts:
        for line in receipt.sources:
            ordinal, where = int(line["ordinal"]), f"{name_of(receipt)}: {line['file']} (ordinal {line['ordinal']})"
            entry = by_ordinal.get(ordinal)
            if ordinal in seen:
                defects.append(f"{where}: is in the split twice, first in {seen[ordinal]}")
            elif ordinal < previous:
                defects.append(f"{where}: comes after ordinal {previous}: the order is not the manifest's")
            seen.setdefault(ordinal, name_of(receipt))
            previous = ordinal
            if entry is None:
                defects.append(f"{where}: is not in the manifest")
            elif entry.split != split:
                defects.append(f"{where}: belongs to split {entry.split}, not {split}")
            elif entry.relpath != line["file"]:
                other = f", and this file in split {by_path[line['file']].split}" if line["file"] in by_path else ""
                defects.append(f"{where}: the manifest has {entry.relpath} there{other}")
            elif entry.sha256 and entry.sha256 != line["sha256"]:
                defects.append(f"{where}: sha256 {line['sha256']}, the manifest says {entry.sha256}")
            if (twin := foreign.get(line["sha256"])) is not None:
                defects.append(f"{where}: has the very bytes of {twin.relpath} of split {twin.split}")
    wanted = [e for e in entries if e.split == split]
    missing = [e.relpath for e in wanted if e.ordinal not in seen]
    if missing:
        defects.insert(0, f"{split}: {len(missing)} of {len(wanted)} files are missing: {first_of(missing)}")
    return verdict(
        defects,
        f"{split} holds its {len(wanted)} files once each, in manifest order, and no other.",
        "Materialize the shards that these files belong to, then `combined_bins`",
        facts={"files": len(seen), "files_in_manifest": len(wanted), "missing": len(missing)},
    )


class _PlainUnpickler(pickle.Unpickler):
    """Reads builtin containers and scalars; a pickle that names any class or function is refused, not run."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}, and loading it would run that")

    def persistent_load(self, pid: Any, /) -> NoReturn:
        raise pickle.UnpicklingError("it names a persistent object")


# What the unpickler raises for bytes that are no pickle.
_NO_PICKLE = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    MemoryError,
)


def _read_pickle(path: Path) -> Any:
    size = path.stat().st_size
    if size > META_BYTES:
        raise FormatError(f"{path}: {size} bytes; a meta.pkl has a few hundred. Do not load it; {_REBUILD.lower()}")
    try:
        return _PlainUnpickler(io.BytesIO(path.read_bytes())).load()
    except _NO_PICKLE as error:
        raise FormatError(f"{path}: not a plain pickle: {error}. Do not load it; {_REBUILD.lower()}") from error


@judged
def meta_matches(directory: Path, bundle: TokenizerBundle, separator_id: int, dtype: str) -> Finding:
    """`meta.pkl` equals `meta.json`, and both say what the tokenizer and the bins say."""
    meta, pickled = read_meta(directory), _read_pickle(directory / "meta.pkl")
    defects = []
    if not isinstance(pickled, dict):
        defects.append(f"{directory / 'meta.pkl'}: holds a {type(pickled).__name__}, not a dict")
    elif pickled != meta:
        differing = sorted((k for k in {*pickled, *meta} if pickled.get(k) != meta.get(k)), key=str)
        defects.append(
            f"{directory / 'meta.pkl'}: {differing[0]!r} is {pickled.get(differing[0])!r}, "
            f"meta.json says {meta.get(differing[0])!r}"
        )
    expected = {"vocab_size": bundle.vocab_size, "eos_token_id": separator_id, "dtype": dtype}
    for key, value in expected.items():
        if meta.get(key) != value:
            source = "the bins have" if key != "vocab_size" else f"len() of {bundle.name} is"
            defects.append(f"{directory / 'meta.json'}: {key} is {meta.get(key)!r}, {source} {value!r}")
    return verdict(
        defects,
        f"meta.pkl and meta.json agree: {dtype}, vocabulary {bundle.vocab_size}, separator {separator_id}.",
        _REBUILD,
        facts={"vocab_size": bundle.vocab_size, "eos_token_id": separator_id, "dtype": dtype},
    )


@judged
def alignment(
    tokens_path: Path,
    dtype: str,
    ends: NDArray[np.uint64],
    *,
    separator_id: int,
    vocab_size: int,
    seed: int,
    bos_id: int | None = None,
    literal_separators: int = 0,
    windows: int = 64,
    block: int = 1024,
) -> Finding:
    """Inputs and labels, read as a trainer reads them, are one token apart and on the token grid.

    `x[1:] == y[:-1]` on two slices of one array is true of any file. Here x and y are two reads of the file at byte
    offsets computed from counts, both are held against the mapping, and the grid itself is proven: the file has as
    many tokens as the document ends say, and in each window separators are exactly where the document ends are. So a
    file that is shifted by a few bytes, has lost a token, or is opened with the wrong dtype fails. Where the text has
    literal separators, or BOS is the same id, only their presence at the ends is asked. Windows lie at document ends
    drawn at random, and at the first and last.
    """
    width = flat_bins.token_dtype(dtype).itemsize
    name, size = tokens_path.name, tokens_path.stat().st_size
    count = int(ends[-1]) if len(ends) else 0
    if size != count * width:
        return verdict(
            [f"{name}: {size} bytes, but its {len(ends)} documents end at byte {count * width} as {dtype}"],
            "",
            f"The dtype is wrong or tokens are lost. {_REBUILD}",
            facts={"bytes": size, "tokens": count},
        )
    tokens = flat_bins.open_tokens(tokens_path, dtype)
    rng = np.random.default_rng(seed)
    documents = {0, len(ends) - 1, *rng.integers(0, len(ends), max(windows - 2, 0)).tolist()} if count > 1 else set()
    defects: list[str] = []
    boundaries = 0
    length = min(block, count - 1)
    exact = not literal_separators and bos_id != separator_id
    for document in sorted(documents):
        # the document's end lies somewhere inside the labels, at a place that is random too
        start = int(np.clip(int(ends[document]) - 1 - int(rng.integers(0, max(length, 1))), 0, count - 1 - length))
        x = np.fromfile(tokens_path, flat_bins.token_dtype(dtype), length, offset=start * width)
        y = np.fromfile(tokens_path, flat_bins.token_dtype(dtype), length, offset=(start + 1) * width)
        first, last = np.searchsorted(ends, np.array([start + 1, start + length + 1], np.uint64), side="left").tolist()
        inside = np.asarray(ends[first : last + 1]).astype(np.int64) - 1
        inside = inside[(inside >= start) & (inside <= start + length)]
        boundaries += len(inside)
        mapped = tokens[start : start + length + 1]
        wrong = _misaligned(x, y, mapped, inside - start, separator_id, vocab_size, exact=exact)
        defects += [f"{name}: window at token offset {start} (document {document}): {w}" for w in wrong]
    return verdict(
        defects,
        f"{len(documents)} windows are aligned: labels one token on, {boundaries} separators where documents end.",
        f"The file is shifted, cut or of another dtype: verify its digest. {_REBUILD}",
        facts={"windows": len(documents), "boundaries": boundaries, "tokens": count},
    )


def _misaligned(
    x: NDArray[Any],
    y: NDArray[Any],
    mapped: NDArray[Any],
    ends: NDArray[np.int64],
    separator: int,
    vocab_size: int,
    *,
    exact: bool,
) -> Iterator[str]:
    """What is wrong with one window; `ends` are where its documents' last tokens are, counted in the window."""
    if not np.array_equal(x, mapped[:-1]) or not np.array_equal(y, mapped[1:]):
        yield "two reads of the file disagree; a writer is at work, or the disk is failing"
    if not np.array_equal(x[1:], y[:-1]):
        yield "labels are not the inputs one token on"
    seen = np.concatenate((x[:1], y))
    if len(wrong := np.flatnonzero(seen >= vocab_size)):
        yield f"id {int(seen[wrong[0]])} at window position {int(wrong[0])} is not below {vocab_size}"
    if len(wrong := ends[seen[ends] != separator]):
        yield f"a document ends at window position {int(wrong[0])}, where id {int(seen[wrong[0]])} is no separator"
    if exact:
        extra = np.setdiff1d(np.flatnonzero(seen == separator), ends)
        if len(extra):
            yield f"a separator at window position {int(extra[0])}, where no document ends"


@judged
def sampler_dry_run(
    tokens_path: Path,
    dtype: str,
    vocab_size: int,
    *,
    seed: int,
    batches: int = 32,
    batch_size: int = 8,
    block: int = 256,
) -> Finding:
    """Random batches can be drawn and learned from: a unigram model beats the uniform one on batches held out.

    Blocks are drawn without replacement, as a shuffling DataLoader draws them, so no held-out block was fitted on. A
    uniform model's loss, ln(vocabulary), is what training starts from; the unigram model has additive smoothing of 0.1
    a token. Losses are in nats per token. Ids that are noise leave the unigram model no better than the uniform one.
    Blocks of one id alone are an error when most of those drawn are, and a warning when a few are: documents of one
    repeated token exist.
    """
    tokens = flat_bins.open_tokens(tokens_path, dtype)
    rng = np.random.default_rng(seed)
    uniform = math.log(vocab_size)
    blocks = max(len(tokens) - 1, 0) // block
    batch_size = min(batch_size, max(blocks // 2, 1))
    batches = min(batches, blocks // batch_size)
    if batches < 2:
        return verdict(
            [f"{tokens_path.name}: {len(tokens)} tokens are too few for two batches of a block of {block} tokens"],
            "",
            "Give the split more text, or train with a shorter block",
            facts={"tokens": len(tokens)},
            warning=True,
        )
    starts = (rng.choice(blocks, (batches, batch_size), replace=False) * block).tolist()
    counts = np.zeros(vocab_size, np.int64)
    losses: list[float] = []
    defects: list[str] = []
    constant: list[str] = []
    for number, offsets in enumerate(starts):
        x = np.stack([tokens[o : o + block] for o in offsets])
        y = np.stack([tokens[o + 1 : o + 1 + block] for o in offsets])
        for row in np.flatnonzero(x.min(axis=1) == x.max(axis=1)).tolist():
            place = f"{tokens_path.name}: batch {number}"
            constant.append(f"{place}: all {block} tokens from token offset {offsets[row]} are id {x[row, 0]}")
        wrong = np.argwhere(y >= vocab_size).tolist()
        if wrong:
            row, column = wrong[0]
            defects.append(
                f"{tokens_path.name}: batch {number}: id {y[row, column]} at token offset {offsets[row] + 1 + column} "
                f"is not below {vocab_size}"
            )
        elif number < batches // 2:
            counts += np.bincount(y.ravel().astype(np.int64), minlength=vocab_size)
        else:
            shares = (counts + 0.1) / (counts.sum() + 0.1 * vocab_size)
            losses.append(float(-np.log(shares[y.ravel()]).mean()))
    unigram = float(np.mean(losses)) if losses else math.inf
    if not defects and not unigram < uniform:
        defects.append(
            f"{tokens_path.name}: a unigram model has a loss of {unigram:.3f} on held-out batches, the uniform one "
            f"{uniform:.3f}: the ids have no more structure than noise"
        )
    warning = not defects and 2 * len(constant) <= batches * batch_size
    return verdict(
        defects + constant,
        f"Training would start at a loss of {uniform:.3f}; token frequencies alone bring it to {unigram:.3f}.",
        "Look at `eye_test`; wrong dtype and damaged bytes look like this",
        facts={
            "uniform_loss": round(uniform, 4),
            "batches": batches,
            "batch_tokens": batch_size * block,
            "constant_blocks": len(constant),
            "unigram_loss": round(unigram, 4) if math.isfinite(unigram) else "none",
        },
        warning=warning,
    )


@judged
def shuffle_quality(receipts: Sequence[Receipt]) -> Finding:
    """How mixed the order is, from the receipts of the shards: runs of documents of one file, and of one chunk.

    A report: any order passes. It fails when the files' documents or tokens do not sum up to the shard's.
    """
    defects = []
    for receipt in receipts:
        ledger = ledger_of(receipt)
        for field in ("documents", "tokens"):
            if (total := sum(line[field] for line in receipt.sources)) != getattr(ledger, field):
                defects.append(
                    f"{name_of(receipt)}: {field} of its {len(receipt.sources)} files sum to {total}, the ledger has "
                    f"{getattr(ledger, field)}"
                )
    return _order_report(defects, [line for receipt in receipts for line in receipt.sources])


@judged
def source_run_length(ends: NDArray[np.uint64], sources: Sequence[Mapping[str, Any]]) -> Finding:
    """How long runs of one source are in the combined stream: `sources` lines in order against the document ends.

    A report, as `shuffle_quality`. It fails, naming the file, when a file's last document does not end where the sums
    of tokens say.
    """
    defects = []
    document = tokens = 0
    for line in sources:
        document, tokens = document + line["documents"], tokens + line["tokens"]
        held = int(ends[document - 1]) if 0 < document <= len(ends) else 0 if document == 0 else None
        if held != tokens:
            where = "is beyond the last" if held is None else f"ends at token {held}"
            place = f"{line['file']}: its last document, {document - 1}"
            defects.append(f"{place}, {where}; the sources sum to {tokens} tokens")
            break
    if document != len(ends) and not defects:
        defects.append(f"the sources sum to {document} documents, there are {len(ends)} document ends")
    return _order_report(defects, sources)


def _order_report(defects: Sequence[str], sources: Sequence[Mapping[str, Any]]) -> Finding:
    lines = [line for line in sources if line["documents"]]
    files = _runs(lines, lambda line: str(line["file"]))
    chunks = _runs(lines, lambda line: str(PurePosixPath(line["file"]).parent))
    facts: dict[str, int | float | str] = {
        "documents": sum(line["documents"] for line in lines),
        "tokens": sum(line["tokens"] for line in lines),
    }
    for kind, runs in (("file", files), ("chunk", chunks)):
        facts |= {
            f"{kind}_runs": len(runs),
            f"mean_documents_per_{kind}_run": round(sum(r["documents"] for r in runs) / max(len(runs), 1), 2),
            f"mean_tokens_per_{kind}_run": round(sum(r["tokens"] for r in runs) / max(len(runs), 1), 2),
            f"longest_{kind}_run_tokens": max((r["tokens"] for r in runs), default=0),
        }
    table: Sequence[Row] = sorted(chunks, key=lambda r: -int(r["tokens"]))[:SHOWN]
    return verdict(
        defects,
        f"{facts['documents']} documents lie in {len(files)} runs of one file and {len(chunks)} runs of one chunk, "
        f"{facts['mean_tokens_per_file_run']} tokens a file run: shuffle when training.",
        f"Totals and order disagree. {_REBUILD}",
        facts=facts,
        table=[{"defect": d} for d in defects[:SHOWN]] or table,
    )


def _runs(lines: Sequence[Mapping[str, Any]], name: Callable[[Mapping[str, Any]], str]) -> list[dict[str, Any]]:
    """Neighbouring lines of the same source joined: its name, documents and tokens."""
    grouped = ((source, list(members)) for source, members in groupby(lines, name))
    return [
        {"source": source, **{k: sum(m[k] for m in members) for k in ("documents", "tokens")}}
        for source, members in grouped
    ]
