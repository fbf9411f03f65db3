"""Proofs on a published release: the store has what was built, and a remote reader can read it.

From cheap to expensive: `manifest_published`, `no_orphans`, `remote_readable`, `remote_equals_local`.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from dataprep_assets.formats import npy_shards, sample_ids
from dataprep_assets.formats.flat_bins import token_dtype
from dataprep_assets.graph.finding import Finding, first_of, judged, name_of, verdict
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.release.published import inventory
from dataprep_assets.plural import count_of
from dataprep_assets.serving.release import MANIFEST, Place, Release, ReleaseShard, read_release

_PUBLISH = "Materialize published_shards again: only what differs is sent"


@judged
def manifest_published(place: Place, release: Release, others: Iterable[str] = ()) -> Finding:
    """The store's manifest is that of the shards built here. `others` are defects of the local copy."""
    found = read_release(place)
    defects = [*others]
    if found.digest != release.digest:
        defects.append(f"{place}/{MANIFEST}: it is release {found.digest[:12]}, here is {release.digest[:12]}")
    shards = sum(len(shards) for shards in found.shards.values())
    return verdict(
        defects,
        f"{place} has release {found.digest[:12]}: {count_of(shards, 'shard')} of sequences of "
        f"{found.sequence_length} ids.",
        _PUBLISH,
        facts={"shards": shards, "sequence_length": str(found.sequence_length), "digest": found.digest},
    )


def other_claims(kept: Path, receipt: Receipt, release: Release, place: str) -> Iterator[str]:
    """Claims of the local copy and receipt of a publication that the release contradicts.

    Args:
        kept: The local copy of the published manifest.
        receipt: The receipt of the publication.
        release: The manifest of the present shards.
        place: Where it is published.
    """
    if kept.read_bytes() != release.to_bytes():
        yield f"{kept}: is not the manifest of the shards that are here"
    wanted = {
        "place": place,
        "digest": release.digest,
        "shards": {prefix: len(shards) for prefix, shards in release.shards.items()},
        "files": len(release.files),
        "bytes": sum(file.bytes for file in release.files),
        "sequence_length": release.sequence_length,
        "dtype": release.dtype,
        "tokenizer": release.tokenizer,
        "tokenizer_sha256": release.tokenizer_sha256,
    }
    for name, value in wanted.items():
        if receipt.facts.get(name) != value:
            yield f"{name_of(receipt)}: {name}: the receipt says {receipt.facts.get(name)!r}, the release {value!r}"
    if dict(receipt.inputs) != {"release": release.digest}:
        yield f"{name_of(receipt)}: its receipt names another release than {release.digest[:12]}"


@judged
def remote_equals_local(place: Place, release: Release) -> Finding:
    """Every file is in the store with its size and SHA-256 (as recorded at the upload, else the bytes are read)."""
    found = inventory(place, release)
    missing = [f"{place}/{file.key}: missing" for file in found.missing]
    size = sum(file.bytes for file in release.files)
    return verdict(
        [*missing, *found.different.values()],
        f"{count_of(len(found.same), 'file')}, {size} bytes, in {place} as built.",
        _PUBLISH,
        facts={"files": len(found.same), "bytes": size},
    )


@judged
def no_orphans(place: Place, release: Release) -> Finding:
    """The store has no shard that the release does not list. A warning: such shards only cost money and confuse."""
    extra = inventory(place, release).extra
    return verdict(
        [f"{place}: {len(extra)} objects of shards that the release does not list: {first_of(extra)}"] if extra else [],
        "No other shards lie beside the release.",
        "Delete them when nobody reads them any more",
        facts={"orphans": len(extra)},
        table=[{"key": key} for key in extra[:20]],
        warning=True,
    )


@judged
def remote_readable(place: Place, release: Release) -> Finding:
    """Read as a remote trainer would: the header of every shard, its first and its last sample, and their ids."""
    defects = [
        defect
        for prefix in release.shards
        for shard in release.of(prefix)
        for defect in unreadable(place, release, shard)
    ]
    shards = sum(len(shards) for shards in release.shards.values())
    return verdict(
        defects,
        f"{count_of(shards, 'shard')} with the header, and the right ids of first and last sample.",
        _PUBLISH,
        facts={"shards": shards},
    )


def unreadable(place: Place, release: Release, shard: ReleaseShard) -> Iterator[str]:
    """What a trainer would find wrong with a shard at a place by its header, and by its first and last sample."""
    where = f"{place}/{shard.token_file.key}"
    header = npy_shards.parse_header(_read(place, shard.token_file.key, 0, npy_shards.HEADER_BYTES), where)
    if (header.dtype, header.tokens) != (release.dtype, shard.tokens):
        yield f"{where}: {header.tokens} {header.dtype} tokens, the release says {shard.tokens} {release.dtype}"
        return
    dtype, length = token_dtype(release.dtype), release.sequence_length
    # a set, because the first sample of a shard may be its last
    for k in sorted({0, shard.tokens // length - 1}):
        start = npy_shards.HEADER_BYTES + k * length * dtype.itemsize
        data = _read(place, shard.token_file.key, start, start + length * dtype.itemsize)
        said = _read(place, shard.ids_file.key, k * sample_ids.ID_BYTES, (k + 1) * sample_ids.ID_BYTES)
        if sample_ids.sample_id(np.frombuffer(data, dtype)) != int.from_bytes(said, "little"):
            yield f"{place}/{shard.ids_file.key}: the id of sample {k} is not that of its tokens"


def _read(place: Place, key: str, start: int, stop: int) -> bytes:
    return b"".join(place.store.read(place.key(key), start, stop))
