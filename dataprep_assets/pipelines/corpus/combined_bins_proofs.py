"""Proofs that the combined bins of a split agree with its shards, its sources and its tokenizer.

They compare `<split>.bin`, `document_ends.bin`, `meta.pkl`, `meta.json` and the receipt with the shards that were
joined, with the manifest and with the tokenizer. Memory does not grow with the split.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.formats import document_ends
from dataprep_assets.formats.meta import read_meta, validate
from dataprep_assets.graph.finding import Finding, first_of, judged, ledger_of, name_of, verdict
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.planning.manifest import ManifestEntry
from dataprep_assets.plural import count_of
from dataprep_assets.stream.token_shard import ENDS, TOKENS
from dataprep_assets.tokenization.bundle import TokenizerBundle

_BLOCK = 4 << 20
_REBUILD = "Materialize `combined_bins` of this split again"

Shards = Sequence[tuple[Path, Receipt]]
"""Directory and receipt of each shard of the split, in manifest order."""


@judged
def equals_shards(directory: Path, receipt: Receipt, shards: Shards, *, split: str) -> Finding:
    """The combined file is the shards, byte for byte and in order, and so are its document ends.

    One pass over the combined file gives the digest of each shard's range and of the whole; the shards themselves are
    read only if a range differs, to name the byte. Document ends are compared with the shards', shifted.
    """
    path = directory / f"{split}.bin"
    claimed = receipt.file(path.name).sha256
    size, expected = path.stat().st_size, sum(r.file(TOKENS).bytes for _, r in shards)
    defects = []
    if size != expected:
        defects.append(f"{path.name}: has {size} bytes, there are {expected} in its {count_of(len(shards), 'shard')}")
    ranges, whole = _range_digests(path, [r.file(TOKENS).bytes for _, r in shards])
    start = 0
    for (shard, of_shard), digest in zip(shards, ranges, strict=True):
        record = of_shard.file(TOKENS)
        if digest != record.sha256:
            where = _first_difference(path, start, shard / TOKENS, record.bytes)
            stop = start + record.bytes
            shown = f"bytes {start} to {stop}"
            defects.append(f"{path.name}: {shown} are not shard {name_of(of_shard)}: {where}")
        start += record.bytes
    if whole != claimed:
        defects.append(f"{path.name}: sha256 {whole}, the receipt of {name_of(receipt)} says {claimed}")
    # only where the tokens are right: with other tokens the ends would differ as well
    if not defects:
        defects += _differing_ends(directory / ENDS, shards)
    return verdict(
        defects,
        f"{path.name} is its {count_of(len(shards), 'shard')}, {size} bytes, in order.",
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
        # what lies behind the last shard belongs to the whole
        while data := file.read(_BLOCK):
            whole.update(data)
    return ranges, whole.hexdigest()


def _first_difference(path: Path, start: int, shard: Path, size: int) -> str:
    """A description of the first difference between a range of the combined file and the shard's own file."""
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
    """The combined ledger is the sum of the shards' ledgers, count by count, in all that it says of documents."""
    held = ledger_of(receipt).of_documents.to_json()
    wrong = []
    if receipt.facts.get("shards", len(shards)) != len(shards):
        wrong.append(f"{name_of(receipt)}: its facts count {receipt.facts['shards']} shards")
    summed = Ledger.total(ledger_of(r) for _, r in shards).of_documents.to_json()
    wrong += [
        f"{name_of(receipt)}: {k}: the ledger says {held[k]}, its {len(shards)} shards sum to {v}"
        for k, v in summed.items()
        if _counts(held[k]) != _counts(v)
    ]
    return verdict(
        wrong,
        f"The ledger is the sum of {count_of(len(shards), 'shard')}: "
        f"{count_of(summed['documents'], 'document')}, {count_of(summed['tokens'], 'token')}.",
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
    """Counts without zeros: a reason that dropped nothing makes no difference."""
    return {k: v for k, v in value.items() if v} if isinstance(value, dict) else value


@judged
def sources_complete(receipts: Sequence[Receipt], entries: Sequence[ManifestEntry], split: str) -> Finding:
    """The shards hold each manifest file of the split exactly once, in order, and no file of another split.

    `entries` are those of the whole manifest. Files are compared by path: the ordinal in a receipt is that of the
    manifest with which the shard was made, and files added since have moved later ones. A file counts as another
    split's by its path or, if the manifest has digests, by its bytes: a copy of a train file under a validation path
    is a leak too.
    """
    foreign = {e.sha256: e for e in entries if e.split != split and e.sha256}
    by_path = {e.relpath: e for e in entries}
    seen: dict[str, str] = {}
    defects = []
    previous = -1
    for receipt in receipts:
        for line in receipt.sources:
            file, where = line["file"], f"{name_of(receipt)}: {line['file']}"
            entry = by_path.get(file)
            if file in seen:
                defects.append(f"{where}: is in the split twice, first in {seen[file]}")
            seen.setdefault(file, name_of(receipt))
            if entry is None:
                defects.append(f"{where}: is not in the manifest")
            elif entry.split != split:
                defects.append(f"{where}: belongs to split {entry.split}, not {split}")
            elif entry.sha256 and entry.sha256 != line["sha256"]:
                defects.append(f"{where}: sha256 {line['sha256']}, the manifest says {entry.sha256}")
            elif entry.ordinal < previous:
                defects.append(f"{where}: comes after file {previous} of the manifest: the order is not the manifest's")
            previous = entry.ordinal if entry is not None else previous
            # files without a document, such as empty ones, may be alike
            if line["documents"] and (twin := foreign.get(line["sha256"])) is not None:
                defects.append(f"{where}: has the very bytes of {twin.relpath} of split {twin.split}")
    wanted = [e for e in entries if e.split == split]
    missing = [e.relpath for e in wanted if e.relpath not in seen]
    if missing:
        defects.insert(0, f"{split}: {len(missing)} of {len(wanted)} files are missing: {first_of(missing)}")
    return verdict(
        defects,
        f"{split} holds its {count_of(len(wanted), 'file')} once each, in manifest order, and no other.",
        "Materialize the shards that these files belong to, then `combined_bins`",
        facts={"files": len(seen), "files_in_manifest": len(wanted), "missing": len(missing)},
    )


@judged
def meta_matches(
    directory: Path,
    bundle: TokenizerBundle,
    separator_id: int,
    dtype: str,
    facts: Mapping[str, Any] | None = None,
) -> Finding:
    """`meta.pkl` equals `meta.json`, and both agree with the tokenizer and the bins.

    Args:
        directory: The directory of the combined bins.
        bundle: The declared tokenizer.
        separator_id: Id of the declared separator.
        dtype: The dtype of the ids.
        facts: The receipt's facts, which have to be the same.
    """
    # compares bytes: a pickle of a few bytes can take gigabytes, or run code, when it is loaded
    validate(directory)
    meta = read_meta(directory)
    defects = [
        f"{directory / 'meta.json'}: {key} is {meta[key]!r}, the receipt says {value!r}"
        for key, value in (facts or {}).items()
        if key in meta and meta[key] != value
    ]
    expected = {"vocab_size": bundle.vocab_size, "eos_token_id": separator_id, "dtype": dtype}
    for key, value in expected.items():
        if meta.get(key) != value:
            source = "the bins have" if key != "vocab_size" else f"len() of {bundle.name} is"
            defects.append(f"{directory / 'meta.json'}: {key} is {meta.get(key)!r}, {source} {value!r}")
    return verdict(
        defects,
        f"meta.pkl and meta.json agree: {dtype}, vocabulary {bundle.vocab_size}, separator {separator_id}.",
        _REBUILD,
        facts={"vocab_size": str(bundle.vocab_size), "eos_token_id": str(separator_id), "dtype": dtype},
    )
