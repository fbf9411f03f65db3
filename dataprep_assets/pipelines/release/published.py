"""Publishes a release: every shard to a store, compared with what is here, and then its manifest.

The manifest is the release: before it is there, nobody takes the shards for one. An earlier manifest is withdrawn
before a file that it lists is replaced, so no reader ever combines two releases.

Entry points: `release_manifest`, `inventory`, `publish_release`, `is_published`, `consumer_environment`,
`consumer_code`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from dataprep_assets.errors import FormatError, IntegrityError, MissingArtifactError
from dataprep_assets.formats import npy_shards
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.release.declaration import ReleaseDeclaration
from dataprep_assets.pipelines.release.npy_shards import ReleaseLayout, partition_key, shard_artifact, shard_key
from dataprep_assets.serving.release import MANIFEST, Place, Release, ReleaseFile, ReleaseShard, read_release
from dataprep_assets.stores import connect
from dataprep_assets.stores.store import ObjectInfo, Progress

VERSION = 1
NAME = "published_shards"
CONSUMER_VARIABLES = (
    "R2_DATASET_ACCOUNT_ID",
    "DATAPREP_ENDPOINT_URL",
    "R2_DATASET_BUCKET_NAME",
    "R2_DATASET_READ_ACCESS_KEY_ID",
    "R2_DATASET_READ_SECRET_ACCESS_KEY",
    "DATASET_BINS_PATH",
)


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """What a store has of a release. `different` maps a key to a sentence; `extra` are shards that it does not list."""

    same: tuple[ReleaseFile, ...]
    missing: tuple[ReleaseFile, ...]
    different: Mapping[str, str] = field(default_factory=dict)
    extra: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every file is there and right."""
        return not self.missing and not self.different


def release_manifest(release: ReleaseDeclaration, store: ArtifactStore, layout: ReleaseLayout) -> Release:
    """The manifest of the finished shards. MissingArtifactError naming those that are not there or out of date."""
    shards: dict[str, list[ReleaseShard]] = {}
    behind = []
    for name, split in layout.splits.items():
        for cut in split.cuts:
            partition = partition_key(name, cut.index)
            receipt = store.receipt(shard_artifact(release, partition))
            if receipt is None or receipt.key != shard_key(release, layout, partition):
                behind.append(partition)
                continue
            token_key, ids_key = npy_shards.token_key(name, cut.index), npy_shards.ids_key(name, cut.index)
            shards.setdefault(name, []).append(
                ReleaseShard(
                    index=cut.index,
                    tokens=cut.tokens,
                    token_file=_file(receipt, token_key),
                    ids_file=_file(receipt, ids_key),
                )
            )
    if behind:
        shown = ", ".join(behind[:8]) + (", …" if len(behind) > 8 else "")
        raise MissingArtifactError(
            f"{release.dataset}: {len(behind)} shards of the release are not there or out of date: {shown}. "
            "Materialize these partitions of npy_shards first"
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
        shards={name: tuple(found) for name, found in shards.items()},
    )


def _file(receipt: Receipt, key: str) -> ReleaseFile:
    record = receipt.file(Path(key).name)
    return ReleaseFile(key=key, bytes=record.bytes, sha256=record.sha256)


def inventory(place: Place, release: Release) -> Inventory:
    """Compare a store with a release, without changing anything: what a dry run shows.

    Digests are the ones that our uploads recorded; objects without one are read.
    """
    found = {info.key.removeprefix(place.base): info for info in place.store.list(place.base)}
    same, missing, different = [], [], {}
    for file in release.files:
        info = found.get(file.key)
        if info is None:
            missing.append(file)
        elif why := _difference(place, file, info):
            different[file.key] = why
        else:
            same.append(file)
    listed = {file.key for file in release.files}
    extra = tuple(sorted(key for key in found if key not in listed and npy_shards.parse_key(key) is not None))
    return Inventory(same=tuple(same), missing=tuple(missing), different=different, extra=extra)


def _difference(place: Place, file: ReleaseFile, info: ObjectInfo) -> str:
    """Why an object is not the file; "" when it is."""
    if info.bytes != file.bytes:
        return f"{place}/{file.key}: {info.bytes} bytes, the release says {file.bytes}"
    key = place.key(file.key)
    # A listing does not carry what the object's own metadata does.
    digest = info.sha256
    if digest is None and (again := place.store.head(key)) is not None:
        digest = again.sha256
    if digest is None:
        whole = sha256()
        for block in place.store.read(key):
            whole.update(block)
        digest = whole.hexdigest()
    return "" if digest == file.sha256 else f"{place}/{file.key}: sha256 {digest}, the release says {file.sha256}"


def publish_release(
    release: ReleaseDeclaration,
    store: ArtifactStore,
    layout: ReleaseLayout,
    place: Place,
    progress: Progress | None = None,
) -> tuple[Receipt, bool]:
    """Have the release in a store, verified, its manifest last; and here a receipt of it with the manifest.

    Returns the receipt, and whether the store already had all of it. What is there and right is not sent again, so a
    killed publication goes on where it was.
    """
    manifest = release_manifest(release, store, layout)
    partitions = {
        file.key: partition_key(prefix, shard.index)
        for prefix, shards in manifest.shards.items()
        for shard in shards
        for file in shard.files
    }

    def find(file: ReleaseFile) -> Path:
        name = Path(file.key).name
        return store.local(shard_artifact(release, partitions[file.key]), [name]) / name

    changed, extra = send_release(place, manifest, find, progress)

    def write(staged: Path) -> Written:
        (staged / MANIFEST).write_bytes(manifest.to_bytes())
        return Written(
            inputs={"release": manifest.digest},
            facts={
                "place": str(place),
                "digest": manifest.digest,
                "shards": {prefix: len(shards) for prefix, shards in manifest.shards.items()},
                "files": len(manifest.files),
                "bytes": sum(file.bytes for file in manifest.files),
                "sequence_length": manifest.sequence_length,
                "dtype": manifest.dtype,
                "tokenizer": manifest.tokenizer,
                "tokenizer_sha256": manifest.tokenizer_sha256,
                "orphans": list(extra),
            },
        )

    key = digest_value([NAME, VERSION, manifest.digest, str(place), list(extra)])
    receipt, current = ensure(release.artifact(NAME), store, key, write, release.verify)
    return receipt, current and not changed


def is_published(release: ReleaseDeclaration, store: ArtifactStore, layout: ReleaseLayout, place: Place) -> bool:
    """Whether the place has the manifest and every file of the shards as they are here, and here is a receipt of it."""
    manifest, found = release_manifest(release, store, layout), _published(place)
    receipt = store.intact(release.artifact(NAME), release.verify)
    if receipt is None or found is None:
        return False
    digests = {manifest.digest, found.digest, receipt.facts["digest"]}
    return len(digests) == 1 and receipt.facts["place"] == str(place) and inventory(place, manifest).complete


def send_release(
    place: Place, release: Release, find: Callable[[ReleaseFile], Path], progress: Progress | None = None
) -> tuple[bool, tuple[str, ...]]:
    """Have the files of a release in a store, then its manifest; whether anything was sent, and orphaned keys.

    `find` gives the local path of a file. Raises IntegrityError when a local file is not what the manifest says, or
    the store has something else than was sent.
    """
    before = inventory(place, release)
    published = _published(place)
    todo = [file for file in release.files if file in before.missing or file.key in before.different]
    if todo and published is not None:
        place.store.delete(place.key(MANIFEST))
    for file in todo:
        place.store.upload(find(file), place.key(file.key), sha256=file.sha256, progress=progress)
    if todo:
        after = inventory(place, release)
        if not after.complete:
            wrong = [*after.different.values(), *(f"{place}/{file.key}: missing" for file in after.missing)]
            raise IntegrityError(f"{wrong[0]} ({len(wrong)} files), after the upload. Publish again")
    if todo or published is None or published.digest != release.digest:
        place.store.put(place.key(MANIFEST), release.to_bytes())
        if read_release(place).digest != release.digest:
            raise IntegrityError(f"{place}/{MANIFEST}: not what was written. Something else publishes to this place")
        return True, before.extra
    return False, before.extra


def _published(place: Place) -> Release | None:
    """The manifest that is there; None when there is none. A damaged one is one of no release."""
    try:
        return read_release(place)
    except (MissingArtifactError, FormatError):
        return None


def consumer_environment(place: connect.Place) -> list[str]:
    """The lines that a trainer's environment needs (FORMATS C.7), without the secrets.

    Empty for a folder, and for GCS, whose own default credentials are enough.
    """
    return [line for line in connect.consumer_lines(place) if line.partition("=")[0] in CONSUMER_VARIABLES]


def consumer_code(place: Place) -> str:
    """A line of Python that opens the release on a training machine, to be pasted there."""
    return (
        "from dataprep_assets.serving import ShardWindow; "
        f'window = ShardWindow("{place}", "shard_cache", steps_per_shard=100); shard = window.swap(0)'
    )
