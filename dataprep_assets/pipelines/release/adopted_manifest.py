"""Manifests for npy shards that were published without one, so that shard caches and managers can read the shards.

A manifest is computed from a listing, the headers of the shards, the number of ids of each shard, and the digests of
the files. If the store does not know a digest, the whole file must be read. Computed digests are saved in a file, so
that a killed adoption can resume.

Entry points: `adopt_shards`, `write_adopted_manifest`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from typing_extensions import TypedDict

from dataprep_assets.errors import FormatError, IntegrityError, MissingArtifactError, count_of
from dataprep_assets.formats import npy_shards, sample_ids
from dataprep_assets.pipelines.release.published import load_published_release
from dataprep_assets.pipelines.release.published_shards import find_read_defects
from dataprep_assets.project import read_state
from dataprep_assets.serving.window.release import MANIFEST, Release, ReleaseFile, ReleaseLocation, ReleaseShard
from dataprep_assets.stores.local import LocalStore
from dataprep_assets.stores.store import ConflictError, ObjectInfo

Files = tuple[ObjectInfo, ObjectInfo]
"""The token file and the file of sample ids of a shard."""


@dataclass(frozen=True, kw_only=True)
class Adoption:
    """Settings for the adoption of shards at a location.

    Attributes:
        place: The location of the shards.
        dataset: The name of the release.
        shards: Number of shards to adopt per prefix, beginning with the first; None for all shards.
        tokenizer: The name of the shards' tokenizer; None if it is unknown.
        digest_file: A local file in which computed digests are saved.
    """

    place: ReleaseLocation
    dataset: str
    shards: int | None = None
    tokenizer: str | None = None
    digest_file: Path


def adopt_shards(adoption: Adoption, reads: Callable[[str, int], None]) -> Release:
    """Return the manifest of the shards at a location.

    Args:
        adoption: The settings, including the location.
        reads: Called with the key and size of each file before it is read for its digest.

    Raises MissingArtifactError if there are no shards or a shard is missing, FormatError if the files are not shards of
    one release, and IntegrityError if ids do not match their tokens.
    """
    location = adoption.place
    objects = {prefix: _order_shards(adoption, prefix, files) for prefix, files in _list_objects(location).items()}
    if not objects:
        raise MissingArtifactError(
            f"{location}: no shards found. A release has {npy_shards.build_token_key('train', 0)} and "
            f"{npy_shards.build_ids_key('train', 0)}; other prefixes have a folder with their name"
        )
    headers = {tokens.key: _read_header(location, tokens) for shards in objects.values() for tokens, _ in shards}
    first_files = next(iter(objects.values()))[0]
    # Derive the length from the first shard; `_build_shard` refuses shards with a different length.
    length = _derive_length(location, headers[first_files[0].key], first_files)
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
                _build_shard(location, index, headers[files[0].key], files, length)
                for index, files in enumerate(shards)
            )
            for prefix, shards in objects.items()
        },
    )
    # Run cheap checks first, because the digests may require reading terabytes.
    all_shards = [shard for shards in release.shards.values() for shard in shards]
    if defects := [line for shard in all_shards for line in find_read_defects(location, release, shard)]:
        raise IntegrityError(
            f"{defects[0]} ({count_of(len(defects), 'defect')}). Ask the owner to publish the shard again"
        )
    infos = {info.key: info for shards in objects.values() for files in shards for info in files}

    def add_digest(file: ReleaseFile) -> ReleaseFile:
        return replace(file, sha256=digests.find_digest(infos[file.key]))

    return replace(
        release,
        shards={
            prefix: tuple(
                replace(shard, token_file=add_digest(shard.token_file), ids_file=add_digest(shard.ids_file))
                for shard in shards
            )
            for prefix, shards in release.shards.items()
        },
    )


def write_adopted_manifest(release: Release, place: ReleaseLocation, folder: Path | None) -> Path | str:
    """Write an adopted manifest next to its shards, or into a local folder; return its location.

    Raises IntegrityError if a different manifest exists there, and ConflictError if one is written at the same time.
    """
    target = place if folder is None else ReleaseLocation(LocalStore(folder))
    manifest = release if folder is None else replace(release, location=str(place))
    location = f"{target}/{MANIFEST}" if folder is None else folder / MANIFEST
    if target.store.head(target.key(MANIFEST)) is not None:
        present_manifest = load_published_release(target)
        if present_manifest is None or present_manifest.to_bytes() != manifest.to_bytes():
            raise IntegrityError(
                f"{location}: contains a different manifest, which trainers may read. Write the new manifest to a "
                "different folder (--to), or delete the existing one if it is unused"
            )
        return location
    # Write only if no manifest exists, because another process may have written a manifest since the comparison.
    target.store.put(target.key(MANIFEST), manifest.to_bytes(), if_absent=True)
    return location


def _list_objects(place: ReleaseLocation) -> dict[str, dict[int, dict[str, ObjectInfo]]]:
    """Return the files of shards by prefix, shard number and kind, with keys relative to the location."""
    objects: dict[str, dict[int, dict[str, ObjectInfo]]] = {}
    for info in place.store.list(place.base):
        key = info.key.removeprefix(place.base)
        if (meaning := npy_shards.parse_key(key)) is not None:
            of_prefix = objects.setdefault(meaning.prefix, {})
            of_prefix.setdefault(meaning.index, {})[meaning.kind] = replace(info, key=key)
    return objects


def _order_shards(adoption: Adoption, prefix: str, files: Mapping[int, Mapping[str, ObjectInfo]]) -> Sequence[Files]:
    """Return the shards of a prefix in order. Raises MissingArtifactError, which names the first missing file."""
    # Without a given number of shards, iterate to the highest number, so that missing shards in between are found.
    count = max(files) + 1 if adoption.shards is None else adoption.shards
    shards = []
    for index in range(count):
        pair = files.get(index, {})
        for kind, key in (("tokens", npy_shards.build_token_key), ("sample_ids", npy_shards.build_ids_key)):
            if kind not in pair:
                hint = f". Use --shards {index} to adopt only the shards before it" if index else ""
                raise MissingArtifactError(f"{adoption.place}/{key(prefix, index)}: missing{hint}")
        shards.append((pair["tokens"], pair["sample_ids"]))
    return shards


def _read_header(place: ReleaseLocation, tokens: ObjectInfo) -> npy_shards.NpyHeader:
    location = f"{place}/{tokens.key}"
    # Limit the range, because a store rejects ranges beyond the end of an object.
    data = b"".join(place.store.read(place.key(tokens.key), 0, min(npy_shards.HEADER_BYTES, tokens.bytes)))
    header = npy_shards.parse_header(data, location)
    if tokens.bytes != (expected_bytes := npy_shards.compute_shard_bytes(header.tokens, header.dtype)):
        raise FormatError(
            f"{location}: has {count_of(tokens.bytes, 'byte')}, but the {header.tokens} {header.dtype} tokens in its "
            f"header need {expected_bytes}. Ask the owner to publish the shard again"
        )
    return header


def _derive_length(place: ReleaseLocation, header: npy_shards.NpyHeader, files: Files) -> int:
    """Return the sample length of a release: the tokens of its first shard divided by the number of its sample ids."""
    tokens, ids = files
    location, samples = f"{place}/{ids.key}", ids.bytes // sample_ids.ID_BYTES
    if b"".join(place.store.read(place.key(ids.key), 0, min(6, ids.bytes))) == npy_shards.MAGIC:
        raise FormatError(
            f"{location}: has a .npy header, which readers would read as 16 ids. Write the ids without a header"
        )
    if not samples or ids.bytes % sample_ids.ID_BYTES or header.tokens % samples:
        raise FormatError(
            f"{location}: its size, {count_of(ids.bytes, 'byte')}, is not a whole number of ids for the "
            f"{count_of(header.tokens, 'token')} of {tokens.key}. Ask the owner to publish the shard again"
        )
    return header.tokens // samples


def _build_shard(
    place: ReleaseLocation, index: int, header: npy_shards.NpyHeader, files: Files, length: int
) -> ReleaseShard:
    """Return a shard whose files have no digests yet. Raises FormatError unless it has exactly one id per sample."""
    tokens, ids = files
    if not ids.bytes or header.tokens * sample_ids.ID_BYTES != ids.bytes * length:
        raise FormatError(
            f"{place}/{tokens.key}: {count_of(header.tokens, 'token')} in sequences of {length} do not match the "
            f"{count_of(ids.bytes, 'byte')} of ids, so readers would reject the shard"
            + (f". Use --shards {index} to adopt only the shards before it" if index else "")
        )
    token_file, ids_file = (ReleaseFile(key=info.key, bytes=info.bytes, sha256="") for info in files)
    return ReleaseShard(index=index, tokens=header.tokens, token_file=token_file, ids_file=ids_file)


class _KnownDigest(TypedDict):
    """A saved digest, with the size and version of its file."""

    bytes: int
    version: str
    sha256: str


class _Digests:
    """SHA-256 digests of files at the location, from the store or the saved digests, or computed from the file."""

    def __init__(self, adoption: Adoption, reads: Callable[[str, int], None]) -> None:
        self._place, self._path, self._reads = adoption.place, adoption.digest_file, reads
        # The saved size, version and SHA-256 of each file let a later run skip files that an earlier run has read.
        self._known_digests = read_state(self._path, dict[str, _KnownDigest]) or {}

    def find_digest(self, info: ObjectInfo) -> str:
        """Return the digest of a listed object."""
        # Request the object's metadata if the listing has no digest, because the metadata may have one.
        head = info if info.sha256 else self._place.store.head(self._place.key(info.key))
        if head is not None and head.sha256 is not None:
            return head.sha256
        memory = self._known_digests.get(info.key)
        # Compute the digest if none is saved, or if a different size or version shows that the object was replaced.
        if memory is None or (memory["bytes"], memory["version"]) != (info.bytes, info.version):
            self._known_digests[info.key] = memory = _KnownDigest(
                bytes=info.bytes, version=info.version, sha256=self._compute_digest(info)
            )
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Save after each file with an atomic rename, so that a killed adoption loses at most one file's digest.
            draft = self._path.with_suffix(".new")
            draft.write_text(json.dumps(self._known_digests))
            draft.replace(self._path)
        return memory["sha256"]

    def _compute_digest(self, info: ObjectInfo) -> str:
        self._reads(info.key, info.bytes)
        digest = sha256()
        try:
            # Read only the listed version, so that the digest never covers parts of two versions.
            for block in self._place.store.read(self._place.key(info.key), version=info.version):
                digest.update(block)
        except ConflictError as error:
            raise IntegrityError(
                f"{self._place}/{info.key}: replaced while it was being read. Run `dataprep release adopt` again when "
                "the owner has finished publishing"
            ) from error
        return digest.hexdigest()
