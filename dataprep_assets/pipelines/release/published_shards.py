"""Published shards (`<dataset>/published_shards`): the release at its public location, with the manifest written last.

The artifact contains only a copy of the manifest, and its receipt has the location.
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
from dataprep_assets.engine.checks.verdicts import WholeArtifactChecks
from dataprep_assets.errors import IntegrityError, MissingArtifactError, count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.formats import npy_shards, sample_ids
from dataprep_assets.formats.flat_bins import token_dtype
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.release.declaration import ReleaseDeclaration
from dataprep_assets.pipelines.release.layout import ReleaseLayout, compute_release_layout, format_partition_key
from dataprep_assets.pipelines.release.npy_shard import (
    NPY_SHARDS,
    build_shard_recipe,
    collect_release_settings,
    get_shard_artifact,
)
from dataprep_assets.pipelines.release.published import (
    Inventory,
    compare_with_release,
    format_consumer_code,
    list_consumer_environment,
    load_published_release,
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

    `digest` is the manifest's digest, `shards` is the number of shards of each split, and `orphans` are the keys of
    shards at the location that the release does not list.
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


def build_published_shards_spec(release: ReleaseDeclaration, target: str, *, shards: ArtifactSpec) -> ArtifactSpec:
    """Return the spec of a release's publication.

    Args:
        release: The declaration.
        target: The public location: a folder or a URL.
        shards: The spec of the npy shards.
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
        check_groups=(WholeArtifactChecks(checks=CHECKS, open=partial(_open_publication, release, target)),),
    )


def build_release_manifest(release: ReleaseDeclaration, store: ArtifactStore, layout: ReleaseLayout) -> Release:
    """Return the manifest of the shards of `layout` in `store`, with the options of `release`.

    Raises MissingArtifactError, which names the shards that are missing or out of date.
    """
    shards: dict[str, list[ReleaseShard]] = {}
    stale_shards = []
    for name, split in layout.splits.items():
        for shard_cut in split.cuts:
            partition = format_partition_key(name, shard_cut.index)
            receipt = store.receipt(get_shard_artifact(release, partition))
            if receipt is None or receipt.key != build_shard_recipe(release, layout, partition).key:
                stale_shards.append(partition)
                continue
            token_key, ids_key = (
                npy_shards.build_token_key(name, shard_cut.index),
                npy_shards.build_ids_key(name, shard_cut.index),
            )
            shards.setdefault(name, []).append(
                ReleaseShard(
                    index=shard_cut.index,
                    tokens=shard_cut.tokens,
                    token_file=_build_release_file(receipt, token_key),
                    ids_file=_build_release_file(receipt, ids_key),
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


def _build_release_file(receipt: Receipt, key: str) -> ReleaseFile:
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
    """Publish the shards of a release, then its manifest; then commit a copy of the manifest with a receipt.

    Files that the location already has with the right digest are not uploaded again, so a killed publication can
    resume.

    Args:
        release: The declaration.
        store: The store of the release's npy shards.
        layout: The layout of the release.
        place: The location from which trainers download the release.
        progress: Called from several threads with the number of bytes that were uploaded.
        expect: Called once before the uploads with the number of bytes to upload.

    Returns:
        The receipt, and whether the location already had the whole release.
    """
    manifest = build_release_manifest(release, store, layout)
    partitions = {
        file.key: format_partition_key(prefix, shard.index)
        for prefix, shards in manifest.shards.items()
        for shard in shards
        for file in shard.files
    }

    def find_path(file: ReleaseFile) -> Path:
        name = Path(file.key).name
        return store.local(get_shard_artifact(release, partitions[file.key]), [name]) / name

    # Upload before committing the receipt. If the run is killed in between, the next run uploads nothing and commits
    # the receipt.
    is_changed, extra_keys = send_release(place, manifest, find_path, progress, expect)

    def write(staged: Path) -> WrittenFiles:
        (staged / MANIFEST).write_bytes(manifest.to_bytes())
        return WrittenFiles(
            inputs={"release": manifest.digest},
            facts=PublishedShardsFacts(**_build_claims(manifest, place), orphans=tuple(extra_keys)),
        )

    receipt, is_current = ensure_built(
        _build_recipe(release, store, manifest, place, extra_keys), store, write, release.verify
    )
    return receipt, is_current and not is_changed


def _build_claims(release: Release, place: ReleaseLocation) -> dict[str, Any]:
    """Return the facts of a publication, except `orphans`."""
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
    """Return the recipe of a publication. It has only a digest of the location, because recipes contain no paths."""
    partitions = [
        format_partition_key(prefix, shard.index) for prefix, shards in manifest.shards.items() for shard in shards
    ]
    receipts = store.receipts([get_shard_artifact(release, partition) for partition in partitions])
    return Recipe(
        artifact=release.artifact(PUBLISHED_SHARDS),
        # The key covers the orphans, because the receipt lists them.
        key=digest_value([PUBLISHED_SHARDS, VERSION, manifest.digest, str(place), list(orphans)]),
        version=VERSION,
        settings={"release": collect_release_settings(release)},
        sources={
            "release.publish": digest_value(str(place)),
            **({"other shards at the place": digest_value(list(orphans))} if orphans else {}),
        },
        upstream={f"{NPY_SHARDS}/{r.partition}": r.content for r in receipts if r is not None},
    )


def _build_recipes(
    release: ReleaseDeclaration, target: str, store: ArtifactStore, _: Sequence[str | None]
) -> Iterator[Recipe]:
    """Yield the current recipe of the publication. Raises IntegrityError if its location does not have all files.

    The location is not searched for orphans, which do not affect trainers; the receipt's orphans are used.
    """
    location = locate_release(target)
    manifest = build_release_manifest(release, store, compute_release_layout(release, store))
    receipt = store.intact_receipt(release.artifact(PUBLISHED_SHARDS), release.verify)
    recipe = _build_recipe(
        release,
        store,
        manifest,
        location,
        PublishedShardsFacts.from_receipt(receipt).orphans if receipt is not None else (),
    )
    # Compare the location only if the publication is otherwise up to date, because the comparison sends many requests.
    if receipt is not None and recipe.find_change(receipt) is None:
        _require_published_shards(location, manifest)
    yield recipe


def _require_published_shards(place: ReleaseLocation, manifest: Release) -> None:
    remote = load_published_release(place)
    if remote is None:
        raise IntegrityError(f"{place}/{MANIFEST}: missing or damaged. Publish the release again")
    require_own(place, remote, manifest.dataset)
    if remote.digest != manifest.digest:
        raise IntegrityError(
            f"{place}/{MANIFEST}: expected release {manifest.digest[:12]}, but found {remote.digest[:12]}. Publish "
            "the release again"
        )
    comparison = compare_with_release(place, manifest)
    if not comparison.is_complete:
        defects = [*comparison.different.values(), *(f"{place}/{file.key}: missing" for file in comparison.missing)]
        raise IntegrityError(
            f"{defects[0]} ({count_of(len(defects), 'file')}). Publish the release again: only these are uploaded"
        )


def _build_publication(release: ReleaseDeclaration, target: str, request: BuildRequest) -> list[Outcome]:
    # Use a lock, because several threads of the upload report progress.
    progress, lock = request.progress, threading.Lock()

    def count_sent(count: int) -> None:
        with lock:
            progress.add({"source_bytes": count})
            progress.show()

    layout = compute_release_layout(release, request.store)
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
        "how_to_train": Markdown(f"```python\n{format_consumer_code(location)}\n```"),
    }
    if lines := list_consumer_environment(parse_place(target, os.environ)):
        metadata["consumer_environment"] = Markdown("```\n" + "\n".join(lines) + "\n```")
    return metadata


@dataclass(frozen=True, kw_only=True)
class OpenedPublishedShards:
    """A published release that is opened for checks.

    Attributes:
        place: The public location.
        release: The manifest of the current shards.
        manifest_copy: Path of the local copy of the published manifest.
        receipt: The receipt of the publication; None if the release was published elsewhere.
    """

    place: ReleaseLocation
    release: Release
    manifest_copy: Path = Path()
    receipt: Receipt | None = None

    @cached_property
    def comparison(self) -> Inventory:
        """Result of comparing the location with the release."""
        return compare_with_release(self.place, self.release)


def _open_publication(
    release: ReleaseDeclaration, target: str, store: ArtifactStore, _: Sequence[str]
) -> OpenedPublishedShards:
    artifact = release.artifact(PUBLISHED_SHARDS)
    return OpenedPublishedShards(
        place=locate_release(target),
        release=build_release_manifest(release, store, compute_release_layout(release, store)),
        manifest_copy=store.local(artifact) / MANIFEST,
        receipt=store.require(artifact),
    )


def manifest_published(publication: OpenedPublishedShards) -> Finding:
    """Check that the published manifest, its local copy and the receipt describe the current shards."""
    location, release = publication.place, publication.release
    remote = read_release(location)
    defects = list(_find_false_claims(publication))
    if remote.digest != release.digest:
        defects.append(
            f"{location}/{MANIFEST}: describes release {remote.digest[:12]}, but the local manifest describes "
            f"{release.digest[:12]}"
        )
    shards = sum(len(shards) for shards in remote.shards.values())
    return build_verdict(
        defects,
        f"{location} has release {remote.digest[:12]}: {count_of(shards, 'shard')} with sequences of "
        f"{count_of(remote.sequence_length, 'id')}.",
        _PUBLISH,
        facts={"shards": shards, "sequence_length": str(remote.sequence_length), "digest": remote.digest},
    )


def _find_false_claims(publication: OpenedPublishedShards) -> Iterator[str]:
    """Yield a sentence for each claim of the local copy or the receipt that contradicts the release."""
    release, receipt = publication.release, publication.receipt
    if receipt is None:
        return
    if publication.manifest_copy.read_bytes() != release.to_bytes():
        yield f"{publication.manifest_copy}: does not describe the current shards"
    claims = _build_claims(release, publication.place)
    for name, value in claims.items():
        if receipt.facts.get(name) != value:
            yield (
                f"{describe_artifact(receipt)}: {name}: the receipt has {receipt.facts.get(name)!r}, but the release "
                f"has {value!r}"
            )
    if dict(receipt.inputs) != {"release": release.digest}:
        yield f"{describe_artifact(receipt)}: its receipt belongs to a release other than {release.digest[:12]}"


def remote_matches_local(publication: OpenedPublishedShards) -> Finding:
    """Check that the location has every file, with the right size and SHA-256.

    Files whose digest was not recorded at the upload are read.
    """
    location, comparison = publication.place, publication.comparison
    missing = [f"{location}/{file.key}: missing" for file in comparison.missing]
    size = sum(file.bytes for file in publication.release.files)
    return build_verdict(
        [*missing, *comparison.different.values()],
        f"{location} has {count_of(len(comparison.same), 'file')} ({count_of(size, 'byte')}) with the size and digest "
        "in the release.",
        _PUBLISH,
        facts={"files": len(comparison.same), "bytes": size},
    )


def no_orphans(publication: OpenedPublishedShards) -> Finding:
    """Check that the location has no shards that are not in the release.

    The check only warns, because these shards use storage but do not affect trainers.
    """
    location, extra_keys = publication.place, publication.comparison.extra
    return build_verdict(
        [
            f"{location}: has {count_of(len(extra_keys), 'object')} of shards that the release does not list: "
            f"{join_first(extra_keys)}"
        ]
        if extra_keys
        else [],
        "The published folder contains only the release's shards.",
        "Delete these shards when no trainer reads them anymore",
        facts={"orphans": len(extra_keys)},
        table=[{"key": key} for key in extra_keys[:20]],
        warning=True,
    )


def remote_readable(publication: OpenedPublishedShards) -> Finding:
    """Check that the header, the first and last sample, and their ids can be read from every published shard."""
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
        f"{count_of(shards, 'shard has', 'shards have')} a valid header, and matching ids of the first and last "
        "samples.",
        _PUBLISH,
        facts={"shards": shards},
    )


def find_read_defects(place: ReleaseLocation, release: Release, shard: ReleaseShard) -> Iterator[str]:
    """Yield a sentence for each defect in the header, the first or last sample of a shard, or in their ids."""
    location = f"{place}/{shard.token_file.key}"
    header = npy_shards.parse_header(_read_range(place, shard.token_file.key, 0, npy_shards.HEADER_BYTES), location)
    if (header.dtype, header.tokens) != (release.dtype, shard.tokens):
        yield (
            f"{location}: has {header.tokens:,} {header.dtype} tokens, but the release lists {shard.tokens:,} "
            f"{release.dtype} tokens"
        )
        return
    dtype, length = token_dtype(release.dtype), release.sequence_length
    # Use a set, because the first sample of a shard may also be its last.
    for k in sorted({0, shard.tokens // length - 1}):
        start = npy_shards.HEADER_BYTES + k * length * dtype.itemsize
        data = _read_range(place, shard.token_file.key, start, start + length * dtype.itemsize)
        id_bytes = _read_range(place, shard.ids_file.key, k * sample_ids.ID_BYTES, (k + 1) * sample_ids.ID_BYTES)
        if sample_ids.compute_sample_id(np.frombuffer(data, dtype)) != int.from_bytes(id_bytes, "little"):
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
