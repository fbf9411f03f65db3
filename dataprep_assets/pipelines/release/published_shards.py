"""Published shards (`<dataset>/published_shards`): the release at its public location, with the manifest written last.

The artifact itself has a copy of the manifest, and its receipt contains the location.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.metadata_values import Location, Markdown, ShownValue
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest
from dataprep_assets.engine.checks.check import Check, Finding, build_verdict, describe_artifact, join_first
from dataprep_assets.engine.checks.verdicts import WholeChecks
from dataprep_assets.errors import IntegrityError, MissingArtifactError, count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.formats import npy_shards, sample_ids
from dataprep_assets.formats.flat_bins import token_dtype
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.release.declaration import ReleaseDeclaration
from dataprep_assets.pipelines.release.layout import ReleaseLayout, partition_key, release_layout
from dataprep_assets.pipelines.release.npy_shard import NPY_SHARDS, release_settings, shard_artifact, shard_recipe
from dataprep_assets.pipelines.release.published import (
    Inventory,
    compare_with_release,
    consumer_code,
    consumer_environment,
    published_release,
    require_own,
    send_release,
)
from dataprep_assets.serving.window.release import (
    MANIFEST,
    Release,
    ReleaseFile,
    ReleaseLocation,
    ReleaseShard,
    locate_release,
    read_release,
)
from dataprep_assets.stores.connect import parse_place
from dataprep_assets.stores.files import digest_value
from dataprep_assets.stores.store import Progress

VERSION = 2
PUBLISHED_SHARDS = "published_shards"
_PUBLISH = "Rebuild published_shards: only differing files are uploaded"


class PublishedShardsFacts(Facts):
    """Facts of a publication.

    `digest` is the manifest's, `shards` counts the shards of each split, and `orphans` are keys of shards in the store
    that the release does not list.
    """

    place: str
    digest: str
    shards: dict[str, int]
    files: int
    bytes: int
    sequence_length: int
    dtype: str
    tokenizer: str
    tokenizer_sha256: str
    orphans: tuple[str, ...]


def published_shards_spec(release: ReleaseDeclaration, target: str, *, shards: ArtifactSpec) -> ArtifactSpec:
    """Return the spec of a release's publication.

    Args:
        release: The dataset.
        target: The public location: a folder or a URL.
        shards: The npy shards.
    """
    return ArtifactSpec(
        declaration=release,
        name=PUBLISHED_SHARDS,
        version=VERSION,
        description="The published release: every file is compared with the local file, and the manifest is uploaded "
        "last.",
        kinds={"numpy", "file"},
        inputs=(shards,),
        pool="network",
        names_places=frozenset({"release.publish"}),
        recipes=partial(_build_recipes, release, target),
        build=partial(_build_publication, release, target),
        metadata=partial(_build_metadata, target),
        published_to=lambda receipt: PublishedShardsFacts.from_receipt(receipt).place,
        check_groups=(WholeChecks(checks=CHECKS, open=partial(_open_publication, release, target)),),
    )


def release_manifest(release: ReleaseDeclaration, store: ArtifactStore, layout: ReleaseLayout) -> Release:
    """Return the manifest of the shards of `layout` in `store`, with the options of `release`.

    Raises MissingArtifactError with the shards that are missing or out of date.
    """
    shards: dict[str, list[ReleaseShard]] = {}
    stale_shards = []
    for name, split in layout.splits.items():
        for shard_cut in split.cuts:
            partition = partition_key(name, shard_cut.index)
            receipt = store.receipt(shard_artifact(release, partition))
            if receipt is None or receipt.key != shard_recipe(release, layout, partition).key:
                stale_shards.append(partition)
                continue
            token_key, ids_key = npy_shards.token_key(name, shard_cut.index), npy_shards.ids_key(name, shard_cut.index)
            shards.setdefault(name, []).append(
                ReleaseShard(
                    index=shard_cut.index,
                    tokens=shard_cut.tokens,
                    token_file=_release_file(receipt, token_key),
                    ids_file=_release_file(receipt, ids_key),
                )
            )
    if stale_shards:
        names = ", ".join(stale_shards[:8]) + (", …" if len(stale_shards) > 8 else "")
        raise MissingArtifactError(
            f"{release.dataset}: {count_of(len(stale_shards), 'shard of the release is', 'shards of the release are')} "
            f"missing or out of date: {names}. "
            "Build these partitions of npy_shards first"
        )
    options = release.release
    return Release(
        dataset=release.dataset,
        sequence_length=options.sequence_length,
        tokens_per_shard=options.tokens_per_shard,
        dtype=str(layout.meta["dtype"]),
        tokenizer=str(layout.meta["tokenizer"]),
        tokenizer_sha256=str(layout.meta["tokenizer_sha256"]),
        vocab_size=int(layout.meta["vocab_size"]),
        separator_id=layout.separator_id,
        shuffle_seed=options.shuffle_seed,
        tail=options.tail,
        sensitive=release.sensitive,
        shards={name: tuple(split_shards) for name, split_shards in shards.items()},
    )


def _release_file(receipt: Receipt, key: str) -> ReleaseFile:
    record = receipt.file(Path(key).name)
    return ReleaseFile(key=key, bytes=record.bytes, sha256=record.sha256)


def publish_release(
    release: ReleaseDeclaration,
    store: ArtifactStore,
    layout: ReleaseLayout,
    place: ReleaseLocation,
    progress: Progress | None = None,
    expect: Callable[[int], None] | None = None,
) -> tuple[Receipt, bool]:
    """Publish a release: its verified shards, then its manifest; then commit a copy of the manifest with a receipt.

    Args:
        release: The dataset.
        store: The store of its npy shards.
        layout: Its layout.
        place: The location where trainers download it.
        progress: Called with the number of bytes uploaded, from several threads.
        expect: Called with the number of bytes to upload, before the first.

    Returns:
        The receipt, and whether the location already had the whole release. Files with the right digest are not
        uploaded again, so a killed publication resumes.
    """
    manifest = release_manifest(release, store, layout)
    partitions = {
        file.key: partition_key(prefix, shard.index)
        for prefix, shards in manifest.shards.items()
        for shard in shards
        for file in shard.files
    }

    def find_path(file: ReleaseFile) -> Path:
        name = Path(file.key).name
        return store.local(shard_artifact(release, partitions[file.key]), [name]) / name

    # Upload before recording the release. After a kill in between, the next run uploads nothing and records it.
    changed, extra = send_release(place, manifest, find_path, progress, expect)

    def write(staged: Path) -> WrittenFiles:
        (staged / MANIFEST).write_bytes(manifest.to_bytes())
        return WrittenFiles(
            inputs={"release": manifest.digest},
            facts=PublishedShardsFacts(**_build_claims(manifest, place), orphans=tuple(extra)),
        )

    receipt, current = ensure_built(_build_recipe(release, store, manifest, place, extra), store, write, release.verify)
    return receipt, current and not changed


def _build_claims(release: Release, place: ReleaseLocation) -> dict[str, Any]:
    """Return the facts of a publication, except the shards that others have put there."""
    return {
        "place": str(place),
        "digest": release.digest,
        "shards": {prefix: len(shards) for prefix, shards in release.shards.items()},
        "files": len(release.files),
        "bytes": sum(file.bytes for file in release.files),
        "sequence_length": release.sequence_length,
        "dtype": release.dtype,
        "tokenizer": release.tokenizer,
        "tokenizer_sha256": release.tokenizer_sha256,
    }


def _build_recipe(
    release: ReleaseDeclaration, store: ArtifactStore, manifest: Release, place: ReleaseLocation, orphans: Sequence[str]
) -> Recipe:
    """Return the recipe of a publication. The location is a source, as a digest, because recipes contain no paths."""
    partitions = [partition_key(prefix, shard.index) for prefix, shards in manifest.shards.items() for shard in shards]
    receipts = store.receipts([shard_artifact(release, partition) for partition in partitions])
    return Recipe(
        artifact=release.artifact(PUBLISHED_SHARDS),
        # the key contains the orphans, because the receipt lists them
        key=digest_value([PUBLISHED_SHARDS, VERSION, manifest.digest, str(place), list(orphans)]),
        version=VERSION,
        settings={"release": release_settings(release)},
        sources={
            "release.publish": digest_value(str(place)),
            **({"other shards at the place": digest_value(list(orphans))} if orphans else {}),
        },
        upstream={f"{NPY_SHARDS}/{r.partition}": r.content for r in receipts if r is not None},
    )


def _build_recipes(
    release: ReleaseDeclaration, target: str, store: ArtifactStore, _: Sequence[str | None]
) -> Iterator[Recipe]:
    """Yield the current recipe of the publication; raise IntegrityError if its location lacks a part of it.

    Other shards at the location are assumed to be the receipt's orphans, because they do not affect trainers.
    """
    location = locate_release(target)
    manifest = release_manifest(release, store, release_layout(release, store))
    receipt = store.intact_receipt(release.artifact(PUBLISHED_SHARDS), release.verify)
    recipe = _build_recipe(
        release,
        store,
        manifest,
        location,
        PublishedShardsFacts.from_receipt(receipt).orphans if receipt is not None else (),
    )
    # Check the location only if the publication would otherwise be up to date.
    if receipt is not None and recipe.difference(receipt) is None:
        _require_published_shards(location, manifest)
    yield recipe


def _require_published_shards(place: ReleaseLocation, manifest: Release) -> None:
    remote = published_release(place)
    if remote is None:
        raise IntegrityError(f"{place}/{MANIFEST}: missing or damaged. Publish the release again")
    require_own(place, remote, manifest.dataset)
    if remote.digest != manifest.digest:
        raise IntegrityError(
            f"{place}/{MANIFEST}: expected release {manifest.digest[:12]}, but found {remote.digest[:12]}. Publish "
            "the release again"
        )
    comparison = compare_with_release(place, manifest)
    if not comparison.complete:
        defects = [*comparison.different.values(), *(f"{place}/{file.key}: missing" for file in comparison.missing)]
        raise IntegrityError(
            f"{defects[0]} ({count_of(len(defects), 'file')}). Publish the release again: only these are uploaded"
        )


def _build_publication(release: ReleaseDeclaration, target: str, request: BuildRequest) -> list[Outcome]:
    # uploads report from several threads
    progress, lock = request.progress, threading.Lock()

    def count_sent(count: int) -> None:
        with lock:
            progress.add({"source_bytes": count})
            progress.show()

    layout = release_layout(release, request.store)
    outcome = publish_release(
        release, request.store, layout, locate_release(target), count_sent, lambda size: progress.expect(size, 1)
    )
    return [Outcome.from_receipt(*outcome)]


def _build_metadata(target: str, _: ArtifactStore, receipt: Receipt) -> Mapping[str, ShownValue]:
    location, facts = locate_release(target), PublishedShardsFacts.from_receipt(receipt)
    metadata: dict[str, ShownValue] = {
        "release": Location(str(location)),
        "release_digest": facts.digest,
        "published_files": facts.files,
        "published_bytes": facts.bytes,
        "how_to_train": Markdown(f"```python\n{consumer_code(location)}\n```"),
    }
    if lines := consumer_environment(parse_place(target, os.environ)):
        metadata["consumer_environment"] = Markdown("```\n" + "\n".join(lines) + "\n```")
    return metadata


@dataclass(frozen=True, kw_only=True)
class OpenedPublication:
    """A published release, opened for checks.

    Attributes:
        place: The public location.
        release: The manifest of the current shards.
        kept: The local copy of the published manifest.
        receipt: The receipt of the publication; None if it was published elsewhere.
    """

    place: ReleaseLocation
    release: Release
    kept: Path = Path()
    receipt: Receipt | None = None

    @cached_property
    def compare_with_release(self) -> Inventory:
        """The files at the location, compared with the release."""
        return compare_with_release(self.place, self.release)


def _open_publication(
    release: ReleaseDeclaration, target: str, store: ArtifactStore, _: Sequence[str]
) -> OpenedPublication:
    artifact = release.artifact(PUBLISHED_SHARDS)
    return OpenedPublication(
        place=locate_release(target),
        release=release_manifest(release, store, release_layout(release, store)),
        kept=store.local(artifact) / MANIFEST,
        receipt=store.require(artifact),
    )


def manifest_published(publication: OpenedPublication) -> Finding:
    """Check that the published manifest, the local copy and its receipt describe the shards built here."""
    location, release = publication.place, publication.release
    remote = read_release(location)
    defects = list(_find_false_claims(publication))
    if remote.digest != release.digest:
        defects.append(
            f"{location}/{MANIFEST}: is release {remote.digest[:12]}, but the local one is {release.digest[:12]}"
        )
    shards = sum(len(shards) for shards in remote.shards.values())
    return build_verdict(
        defects,
        f"{location} has release {remote.digest[:12]}: {count_of(shards, 'shard')} of sequences of "
        f"{count_of(remote.sequence_length, 'id')}.",
        _PUBLISH,
        facts={"shards": shards, "sequence_length": str(remote.sequence_length), "digest": remote.digest},
    )


def _find_false_claims(publication: OpenedPublication) -> Iterator[str]:
    """Yield the claims of a publication's local copy and receipt that the release contradicts."""
    release, receipt = publication.release, publication.receipt
    if receipt is None:
        return
    if publication.kept.read_bytes() != release.to_bytes():
        yield f"{publication.kept}: does not describe the current shards"
    claims = _build_claims(release, publication.place)
    for name, value in claims.items():
        if receipt.facts.get(name) != value:
            yield (
                f"{describe_artifact(receipt)}: {name}: the receipt has {receipt.facts.get(name)!r}, but the release "
                f"has {value!r}"
            )
    if dict(receipt.inputs) != {"release": release.digest}:
        yield f"{describe_artifact(receipt)}: its receipt has a release other than {release.digest[:12]}"


def remote_matches_local(publication: OpenedPublication) -> Finding:
    """Check that every file is in the store with its size and SHA-256, as recorded at the upload, or by reading it."""
    location, comparison = publication.place, publication.compare_with_release
    missing = [f"{location}/{file.key}: missing" for file in comparison.missing]
    size = sum(file.bytes for file in publication.release.files)
    return build_verdict(
        [*missing, *comparison.different.values()],
        f"{count_of(len(comparison.same), 'file')} ({count_of(size, 'byte')}) in {location} match the local ones.",
        _PUBLISH,
        facts={"files": len(comparison.same), "bytes": size},
    )


def no_orphans(publication: OpenedPublication) -> Finding:
    """Check that the store has no shards outside the release; a warning, because they only cost money and confuse."""
    location, extra = publication.place, publication.compare_with_release.extra
    return build_verdict(
        [
            f"{location}: has {count_of(len(extra), 'object')} of shards that the release does not list: "
            f"{join_first(extra)}"
        ]
        if extra
        else [],
        "The folder has only the release's shards.",
        "Delete these shards when no trainer reads them anymore",
        facts={"orphans": len(extra)},
        table=[{"key": key} for key in extra[:20]],
        warning=True,
    )


def remote_readable(publication: OpenedPublication) -> Finding:
    """Read as a remote trainer would: the header of every shard, its first and last sample, and their ids."""
    location, release = publication.place, publication.release
    defects = [
        defect
        for prefix in release.shards
        for shard in release.shards_of(prefix)
        for defect in find_read_defects(location, release, shard)
    ]
    shards = sum(len(shards) for shards in release.shards.values())
    return build_verdict(
        defects,
        f"{count_of(shards, 'shard')} with a valid header, and matching ids of first and last sample.",
        _PUBLISH,
        facts={"shards": shards},
    )


def find_read_defects(place: ReleaseLocation, release: Release, shard: ReleaseShard) -> Iterator[str]:
    """Yield the defects of a shard at a location that a trainer would find in its header, first and last sample."""
    location = f"{place}/{shard.token_file.key}"
    header = npy_shards.parse_header(_read_range(place, shard.token_file.key, 0, npy_shards.HEADER_BYTES), location)
    if (header.dtype, header.tokens) != (release.dtype, shard.tokens):
        yield f"{location}: {header.tokens} {header.dtype} tokens, but the release lists {shard.tokens} {release.dtype}"
        return
    dtype, length = token_dtype(release.dtype), release.sequence_length
    # a set, because the first sample of a shard may also be its last
    for k in sorted({0, shard.tokens // length - 1}):
        start = npy_shards.HEADER_BYTES + k * length * dtype.itemsize
        data = _read_range(place, shard.token_file.key, start, start + length * dtype.itemsize)
        id_bytes = _read_range(place, shard.ids_file.key, k * sample_ids.ID_BYTES, (k + 1) * sample_ids.ID_BYTES)
        if sample_ids.sample_id(np.frombuffer(data, dtype)) != int.from_bytes(id_bytes, "little"):
            yield f"{place}/{shard.ids_file.key}: the id of sample {k} does not match its tokens"


def _read_range(place: ReleaseLocation, key: str, start: int, stop: int) -> bytes:
    return b"".join(place.store.read(place.key(key), start, stop))


CHECKS = (
    Check(
        "manifest_published",
        "The published manifest and the local manifest both describe the current shards.",
        manifest_published,
    ),
    Check(
        "remote_matches_local",
        "Every file is published, with the size and SHA-256 of the local file.",
        remote_matches_local,
    ),
    Check(
        "remote_readable",
        "The headers, the first and last samples, and their ids can be read from the published location.",
        remote_readable,
    ),
    Check(
        "no_orphans", "The published folder has no shard that the manifest does not list.", no_orphans, blocking=False
    ),
)
