"""Compositions and copies inside a GCS bucket, made by its server.

Every composition names the generation of each source, and its CRC32C is compared with the one combined from theirs.

Entry points: :func:`compose`, :func:`concatenate` and :func:`copy`.
"""

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from dataprep_assets.stores.crc32c import combine_all
from dataprep_assets.stores.gcs_api import NoObjectError, Resource, Unfinished
from dataprep_assets.stores.gcs_bucket import DIGEST, KEY, GcsBucket
from dataprep_assets.stores.keys import UPLOADS
from dataprep_assets.stores.pool import map_all
from dataprep_assets.stores.retry import RetryableError
from dataprep_assets.stores.store import ConflictError, ObjectInfo

__all__ = ["compose", "concatenate", "copy"]

# GCS composes at most so many objects in one request.
_COMPOSE = 32


def compose(bucket: GcsBucket, sources: Sequence[Resource], key: str, sha256: str | None) -> ObjectInfo:
    """Concatenate `sources`, none of them empty, into `key`; `sha256` (hex) of the whole is recorded if it is known.

    Raises ConflictError when a source was replaced or removed meanwhile.
    """
    metadata = {} if sha256 is None else {DIGEST: sha256.lower()}
    for _ in range(2):
        # A join that timed out may be carried out after its retry; then the pinned generation is gone. A second
        # attempt in an area of its own distinguishes this from a source that changed, which would fail again.
        area = f"{bucket.prefix}{UPLOADS}{secrets.token_hex(16)}/"
        with suppress(ConflictError, NoObjectError):
            return bucket.info(concatenate(bucket, sources, key, metadata, area=area))
    raise ConflictError(f"{bucket.label(key)}: one of its {len(sources)} sources was replaced or removed meanwhile")


def concatenate(
    bucket: GcsBucket, sources: Sequence[Resource], key: str, metadata: Mapping[str, str], *, area: str
) -> Resource:
    """Compose any number of `sources` into `key`, by levels of 32.

    `metadata` is that of the result. The intermediates lie below `area` (a name in the bucket that ends in `/`), and
    are removed. Raises ConflictError or NoObjectError when a source is not the one that was pinned.
    """
    name, label = bucket.name_of(key), bucket.label(key)
    made: list[Resource] = []

    def join(group: tuple[str, Sequence[Resource]]) -> Resource:
        joined = _join(bucket, *group, {KEY: key}, label)
        made.append(joined)
        return joined

    level = 0
    try:
        while len(sources) > _COMPOSE:
            groups = [
                (f"{area}join-{level}-{start:08d}", sources[start : start + _COMPOSE])
                for start in range(0, len(sources), _COMPOSE)
            ]
            sources = map_all(join, groups, bucket.workers)
            level += 1
        return _join(bucket, name, sources, metadata, label)
    finally:
        bucket.remove_quietly(made)


def _join(
    bucket: GcsBucket, name: str, sources: Sequence[Resource], metadata: Mapping[str, str], label: str
) -> Resource:
    """Compose up to 32 objects, each the generation that was checked; the result is checked too."""
    pinned = [(source.name, source.generation) for source in sources]
    composed = bucket.tried(lambda: bucket.api.compose(pinned, name, metadata=metadata), label)
    crc = combine_all((source.crc32c, source.bytes) for source in sources)
    return bucket.settled(composed, sum(source.bytes for source in sources), crc, label)


def copy(bucket: GcsBucket, source: str, key: str) -> ObjectInfo:
    """Copy the object `source` with its metadata to `key`, in as many steps as the server wants.

    Raises MissingArtifactError when there is no source, ConflictError when it was replaced or removed meanwhile.
    """
    name, label = bucket.name_of(key), f"copy of {bucket.label(source)} to {key}"
    found = bucket.existing(source)
    step: Resource | Unfinished | None = None
    while not isinstance(step, Resource):
        try:
            step = bucket.tried(partial(_copy_step, bucket, found, name, step), label)
        except NoObjectError:
            raise ConflictError(f"{label}: the source was replaced or removed meanwhile") from None
    return bucket.info(bucket.settled(step, found.bytes, found.crc32c, label))


def _copy_step(bucket: GcsBucket, source: Resource, name: str, last: Unfinished | None) -> Resource | Unfinished:
    step = bucket.api.rewrite(source.name, source.generation, name, last.token if last is not None else None)
    if isinstance(step, Unfinished) and last is not None and step.bytes <= last.bytes:
        raise RetryableError(f"the copy stays at byte {step.bytes}")
    return step
