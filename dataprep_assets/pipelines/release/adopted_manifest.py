"""The manifest of npy shards that somebody else published without one, so that windows and managers can read them.

All that a manifest says follows from a listing, from the headers of the shards, from the number of ids beside each, and
from the digests of the files. A digest that the store does not know takes reading the file; what was read is remembered
in a file, so an adoption that is killed goes on from there.

Entry points: `adopt`, `keep_adopted`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from typing_extensions import TypedDict

from dataprep_assets.errors import FormatError, IntegrityError, MissingArtifactError, count_of
from dataprep_assets.formats import npy_shards, sample_ids
from dataprep_assets.pipelines.release.published import published_release
from dataprep_assets.pipelines.release.published_shards import unreadable
from dataprep_assets.project import read_state
from dataprep_assets.serving.window.release import MANIFEST, Release, ReleaseFile, ReleaseLocation, ReleaseShard
from dataprep_assets.stores.local import LocalStore
from dataprep_assets.stores.store import ConflictError, ObjectInfo

Files = tuple[ObjectInfo, ObjectInfo]
"""A shard's tokens and ids."""


@dataclass(frozen=True, kw_only=True)
class Adoption:
    """How shards at a place are adopted.

    Attributes:
        place: Where they are.
        dataset: What the release is called.
        shards: Only the first so many of each prefix; None for all.
        tokenizer: The name of their tokenizer, if it is known.
        remembered: A file on this machine that remembers digests.
    """

    place: ReleaseLocation
    dataset: str
    shards: int | None = None
    tokenizer: str | None = None
    remembered: Path


def adopt(adoption: Adoption, reads: Callable[[str, int], None]) -> Release:
    """The manifest of the shards that are at a place.

    Args:
        adoption: Which, and how.
        reads: Called with the key and the bytes of each file that has to be read for its digest.

    Raises MissingArtifactError if no shard is there, or one is missing; FormatError for files that are no shards of one
    release; IntegrityError where ids are not those of their tokens.
    """
    place = adoption.place
    objects = {prefix: _numbered(adoption, prefix, files) for prefix, files in _list_objects(place).items()}
    if not objects:
        raise MissingArtifactError(
            f"{place}: no shards found: a release has {npy_shards.token_key('train', 0)} and "
            f"{npy_shards.ids_key('train', 0)}, and shards of another prefix in a folder of its name"
        )
    headers = {tokens.key: _header(place, tokens) for shards in objects.values() for tokens, _ in shards}
    first_files = next(iter(objects.values()))[0]
    # of the first shard; `_shard` compares the others with it
    length = _length(place, headers[first_files[0].key], first_files)
    digests = _Digests(adoption, reads)
    release = Release(
        dataset=adoption.dataset,
        sequence_length=length,
        tokens_per_shard=max(header.tokens for header in headers.values()),
        dtype=headers[first_files[0].key].dtype,
        tokenizer=adoption.tokenizer,
        tokenizer_sha256=None,
        vocab_size=None,
        separator_id=None,
        shuffle_seed=None,
        tail=None,
        shards={
            prefix: tuple(
                _shard(place, index, headers[files[0].key], files, length) for index, files in enumerate(shards)
            )
            for prefix, shards in objects.items()
        },
    )
    # what is cheap to find wrong is found before terabytes are read
    all_shards = [shard for shards in release.shards.values() for shard in shards]
    if wrong := [line for shard in all_shards for line in unreadable(place, release, shard)]:
        raise IntegrityError(f"{wrong[0]} ({count_of(len(wrong), 'defect')}). Its owner must publish the shard again")
    infos = {info.key: info for shards in objects.values() for files in shards for info in files}

    def digested(file: ReleaseFile) -> ReleaseFile:
        return replace(file, sha256=digests.digest_of(infos[file.key]))

    return replace(
        release,
        shards={
            prefix: tuple(
                replace(shard, token_file=digested(shard.token_file), ids_file=digested(shard.ids_file))
                for shard in shards
            )
            for prefix, shards in release.shards.items()
        },
    )


def keep_adopted(release: Release, place: ReleaseLocation, folder: Path | None) -> Path | str:
    """Write an adopted manifest, and return where: beside its shards, or into a folder of this machine.

    Raises IntegrityError if the manifest of another release is there, ConflictError if one came meanwhile.
    """
    target = place if folder is None else ReleaseLocation(LocalStore(folder))
    manifest = release if folder is None else replace(release, location=str(place))
    where = f"{target}/{MANIFEST}" if folder is None else folder / MANIFEST
    if target.store.head(target.key(MANIFEST)) is not None:
        present_manifest = published_release(target)
        if present_manifest is None or present_manifest.to_bytes() != manifest.to_bytes():
            raise IntegrityError(
                f"{where}: contains a different manifest, which trainers may read. Write this one to a different "
                "folder (--to), or delete that one if it is unused"
            )
        return where
    # one may have come since the look above, and must not be replaced
    target.store.put(target.key(MANIFEST), manifest.to_bytes(), if_absent=True)
    return where


def _list_objects(place: ReleaseLocation) -> dict[str, dict[int, dict[str, ObjectInfo]]]:
    """Prefix → number → kind → object, with keys relative to the place."""
    objects: dict[str, dict[int, dict[str, ObjectInfo]]] = {}
    for info in place.store.list(place.base):
        key = info.key.removeprefix(place.base)
        if (meaning := npy_shards.parse_key(key)) is not None:
            of_prefix = objects.setdefault(meaning.prefix, {})
            of_prefix.setdefault(meaning.index, {})[meaning.kind] = replace(info, key=key)
    return objects


def _numbered(adoption: Adoption, prefix: str, files: Mapping[int, Mapping[str, ObjectInfo]]) -> Sequence[Files]:
    """The shards of a prefix in order; raises MissingArtifactError naming the first file that is missing."""
    # up to the highest number, so that a gap is noticed
    count = max(files) + 1 if adoption.shards is None else adoption.shards
    shards = []
    for index in range(count):
        pair = files.get(index, {})
        for kind, key in (("tokens", npy_shards.token_key), ("sample_ids", npy_shards.ids_key)):
            if kind not in pair:
                hint = f". --shards {index} adopts the shards before it" if index else ""
                raise MissingArtifactError(f"{adoption.place}/{key(prefix, index)}: missing{hint}")
        shards.append((pair["tokens"], pair["sample_ids"]))
    return shards


def _header(place: ReleaseLocation, tokens: ObjectInfo) -> npy_shards.NpyHeader:
    where = f"{place}/{tokens.key}"
    # a store refuses a range beyond the end of an object
    data = b"".join(place.store.read(place.key(tokens.key), 0, min(npy_shards.HEADER_BYTES, tokens.bytes)))
    header = npy_shards.parse_header(data, where)
    if tokens.bytes != (expected := npy_shards.token_bytes(header.tokens, header.dtype)):
        raise FormatError(
            f"{where}: {count_of(tokens.bytes, 'byte')}, but its header gives {header.tokens} {header.dtype} tokens "
            f"({expected} bytes). Its owner must publish it again"
        )
    return header


def _length(place: ReleaseLocation, header: npy_shards.NpyHeader, files: Files) -> int:
    """Derive the sample length of a release: tokens of the first shard divided by the number of its sample ids."""
    tokens, ids = files
    where, samples = f"{place}/{ids.key}", ids.bytes // sample_ids.ID_BYTES
    if b"".join(place.store.read(place.key(ids.key), 0, min(6, ids.bytes))) == npy_shards.MAGIC:
        raise FormatError(f"{where}: has a .npy header, which readers would read as 16 ids. Write the ids without it")
    if not samples or ids.bytes % sample_ids.ID_BYTES or header.tokens % samples:
        raise FormatError(
            f"{where}: {count_of(ids.bytes, 'byte is', 'bytes are')} not a whole number of ids for the "
            f"{count_of(header.tokens, 'token')} of {tokens.key}"
        )
    return header.tokens // samples


def _shard(place: ReleaseLocation, index: int, header: npy_shards.NpyHeader, files: Files, length: int) -> ReleaseShard:
    """A shard with files whose digests are yet to come; raises FormatError unless it has an id for each sample."""
    tokens, ids = files
    if not ids.bytes or header.tokens * sample_ids.ID_BYTES != ids.bytes * length:
        raise FormatError(
            f"{place}/{tokens.key}: {count_of(header.tokens, 'token')} in sequences of {length} do not match the "
            f"{count_of(ids.bytes, 'byte')} of ids, so readers reject such a shard"
            + (f". --shards {index} adopts those before it" if index else "")
        )
    token_file, ids_file = (ReleaseFile(key=info.key, bytes=info.bytes, sha256="") for info in files)
    return ReleaseShard(index=index, tokens=header.tokens, token_file=token_file, ids_file=ids_file)


class _Known(TypedDict):
    bytes: int
    version: str
    sha256: str


class _Digests:
    """The SHA-256 of files at the place: as the store knows it, as it was remembered, or as it is read."""

    def __init__(self, adoption: Adoption, reads: Callable[[str, int], None]) -> None:
        self._place, self._path, self._reads = adoption.place, adoption.remembered, reads
        # key → size, version and SHA-256 of what was read; if it is lost or damaged, all is read again
        self._remembered = read_state(self._path, dict[str, _Known]) or {}

    def digest_of(self, info: ObjectInfo) -> str:
        """The digest of a listed object."""
        head = info if info.sha256 else self._place.store.head(self._place.key(info.key))  # lists lack metadata
        if head is not None and head.sha256 is not None:
            return head.sha256
        memory = self._remembered.get(info.key)
        # another size or version is another object under the same name
        if memory is None or (memory["bytes"], memory["version"]) != (info.bytes, info.version):
            self._remembered[info.key] = memory = _Known(
                bytes=info.bytes, version=info.version, sha256=self._compute_digest(info)
            )
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Written after each file, beside it and then renamed: a kill costs one file, and leaves the memory whole.
            draft = self._path.with_suffix(".new")
            draft.write_text(json.dumps(self._remembered))
            draft.replace(self._path)
        return memory["sha256"]

    def _compute_digest(self, info: ObjectInfo) -> str:
        self._reads(info.key, info.bytes)
        digest = sha256()
        try:
            # of this version alone, so the digest cannot be of parts of two
            for block in self._place.store.read(self._place.key(info.key), version=info.version):
                digest.update(block)
        except ConflictError as error:
            raise IntegrityError(
                f"{self._place}/{info.key}: replaced while it was being read. Run again when its owner has finished"
            ) from error
        return digest.hexdigest()
