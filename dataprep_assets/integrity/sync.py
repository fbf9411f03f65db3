"""Copying of all objects from one store to another, with a comparison of their digests.

A sync can be killed at any moment and run again. Objects with the right digest at the destination are skipped, and so
are finished pieces of a big object. Receipts are copied last, artifact by artifact, so nothing at the destination
counts as an artifact before it is complete. Objects that exist only at the destination are kept.

**Digests.** The digest of an artifact's file is in its receipt. For another object, it is taken from the metadata, from
the manifest of an earlier sync of the same version, or from the journal of this sync. Otherwise, it is computed while
the object is copied. If two objects of the same size have no known digest, both are read.

**Copies.** Within one bucket and one set of credentials, the server copies. Otherwise, an object passes through a file
in the work folder. An object larger than `piece_bytes` passes through several files, which the destination composes, so
the disk needs space for only one piece.

At the end, the destination has `sync_manifest.json` with the size and SHA-256 of every object.
"""

import fnmatch
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.errors import CorruptSourceError, IntegrityError, TransferError, count_of
from dataprep_assets.integrity.commit import STAGING
from dataprep_assets.integrity.receipt import NAME, parse_receipt
from dataprep_assets.stores.locks import open_own_file
from dataprep_assets.stores.store import ConflictError, ObjectInfo, Progress, Store

MANIFEST = "sync_manifest.json"
PIECES = ".sync/"
PIECE_BYTES = 4 << 30
# The estimate of a plan's requests assumes this number of bytes per request.
_PART_BYTES = 16 << 20
_SHARD = re.compile(r"(?P<folder>(?:.*/)?)(?P<split>[A-Za-z]+)_(?P<index>\d{6})\.npy")
_IDS = re.compile(r"(?P<folder>(?:.*/)?)sample_ids_(?P<index>\d{6})\.bin")
_NPY_HEADER = 128

Action = Literal["copy", "replace", "skip"]


@dataclass(frozen=True, kw_only=True)
class SyncItem:
    """One object of the source, and the action for it. `sha256` is None until it is known."""

    key: str
    bytes: int
    version: str
    sha256: str | None
    action: Action
    why: str


@dataclass(frozen=True, kw_only=True)
class SyncPlan:
    """The planned actions of a sync. `findings` are irregularities of the source: gaps, odd sizes, missing ids."""

    items: tuple[SyncItem, ...]
    findings: tuple[str, ...]
    on_server: bool

    @property
    def todo(self) -> tuple[SyncItem, ...]:
        """The objects to copy, receipts after the data of their artifacts."""
        return tuple(item for item in self.items if item.action != "skip")

    @property
    def bytes(self) -> int:
        """Bytes to copy."""
        return sum(item.bytes for item in self.todo)

    @property
    def requests(self) -> int:
        """Approximate number of requests for copying: ranges read and parts written, or one copy on the server."""
        return sum(2 if self.on_server else 2 + 2 * -(-item.bytes // _PART_BYTES) for item in self.todo)


@dataclass(frozen=True, kw_only=True)
class Sync:
    """A sync from `source` to `destination`. `work` is a local folder for files in transit and the journal.

    `server` is a store that contains both locations, with their two prefixes, if its server can copy between them.
    """

    source: Store
    destination: Store
    work: Path
    prefix: str = ""
    select: tuple[str, ...] = ()
    server: tuple[Store, str, str] | None = None
    piece_bytes: int = PIECE_BYTES
    # Digests by key and version, from the journal that a killed sync left in the work folder.
    _known: dict[tuple[str, str], str] = field(default_factory=dict, repr=False)

    def plan(self) -> SyncPlan:
        """Compare the source and the destination without writing anything."""
        self._known.update(self._read_journal())
        source_objects = [info for info in self.source.list(self.prefix) if self._is_wanted(info.key)]
        digests = self._read_recorded(source_objects)
        destination_objects = {info.key: info for info in self.destination.list(self.prefix)}
        manifest = self._read_kept_manifest()
        items = [
            self._plan_item(info, digests.get(info.key), destination_objects.get(info.key), manifest)
            for info in source_objects
        ]
        return SyncPlan(
            items=tuple(sorted(items, key=lambda item: _build_sort_key(item.key))),
            findings=tuple(find_irregularities(source_objects)),
            on_server=self.server is not None,
        )

    def run(
        self, plan: SyncPlan, progress: Callable[[SyncItem], None] | None = None, on_moved: Progress | None = None
    ) -> int:
        """Execute a plan and write the manifest; return the number of copied objects.

        `progress` is called with each object after it is copied, `on_moved` with the bytes that pass through this
        machine.

        Raises IntegrityError or CorruptSourceError if an object's bytes differ from its receipt, TransferError, and
        ConflictError if the source changed (plan again).
        """
        synced_objects: dict[str, dict[str, Any]] = {}
        outdated = {item.key for item in plan.todo if item.action == "replace" and _is_receipt(item.key)}
        self.work.mkdir(parents=True, exist_ok=True)
        for item in plan.items:
            digest = item.sha256
            if item.action != "skip":
                for receipt in outdated & _list_receipts_above(item.key):
                    # Delete the receipt, so that readers do not see the artifact while it changes.
                    self.destination.delete(receipt)
                    outdated.remove(receipt)
                digest = self._copy(item, on_moved)
                self._write_to_journal(item, digest)
                if progress is not None:
                    progress(item)
            # Look up skipped objects as well, because the manifest records each object's current version.
            info = self.destination.head(item.key)
            if info is None or info.bytes != item.bytes or (digest and info.sha256 not in (None, digest)):
                raise IntegrityError(
                    f"{self.destination.url}/{item.key}: changed during the copy, because another process writes to "
                    "it. Run `dataprep sync` again when that process has finished"
                )
            synced_objects[item.key] = {
                "bytes": item.bytes,
                "sha256": digest,
                "source_version": item.version,
                "version": info.version,
            }
        self._write_manifest(plan, synced_objects)
        # Remove the journal after the manifest is written, because until then only the journal has the digests.
        shutil.rmtree(self.work, ignore_errors=True)
        return len(plan.todo)

    def _is_wanted(self, key: str) -> bool:
        if key == MANIFEST or key.startswith(PIECES) or STAGING in PurePosixPath(key).parts:
            return False
        return not self.select or any(fnmatch.fnmatchcase(key, pattern) for pattern in self.select)

    def _read_recorded(self, objects: Sequence[ObjectInfo]) -> dict[str, str]:
        """Return key → SHA-256, from the receipts of the source."""
        digests: dict[str, str] = {}
        for info in objects:
            folder = info.key.rpartition("/")[0]
            if not _is_receipt(info.key):
                continue
            data = b"".join(self.source.read(info.key, version=info.version))
            receipt = parse_receipt(data, f"{self.source.url}/{info.key}")
            digests |= {f"{folder}/{record.path}".lstrip("/"): record.sha256 for record in receipt.files}
            digests[info.key] = hashlib.sha256(data).hexdigest()
        return digests

    def _plan_item(
        self,
        info: ObjectInfo,
        recorded: str | None,
        old_info: ObjectInfo | None,
        known_objects: Mapping[str, Mapping[str, Any]],
    ) -> SyncItem:
        sha256 = recorded or self._known.get((info.key, info.version))
        action: Action
        if old_info is None:
            action, reason = "copy", "missing at the destination"
        elif old_info.bytes != info.bytes:
            action, reason = "replace", f"{count_of(old_info.bytes, 'byte is', 'bytes are')} at the destination"
        else:
            # Request the object itself, because listings may lack digests (S3's do).
            source = info if sha256 else self.source.head(info.key) or info
            sha256 = sha256 or source.sha256
            target_info = self.destination.head(info.key) or old_info
            action, sha256, reason = self._compare(source, target_info, sha256, known_objects.get(info.key, {}))
        return SyncItem(key=info.key, bytes=info.bytes, version=info.version, sha256=sha256, action=action, why=reason)

    def _compare(
        self, source: ObjectInfo, target_info: ObjectInfo, sha256: str | None, known_objects: Mapping[str, Any]
    ) -> tuple[Action, str | None, str]:
        """Return the action for two objects of the same size, with the digest and the reason."""
        # Use a digest from the manifest of an earlier sync only if the object still has the recorded version.
        if sha256 is None and known_objects.get("source_version") == source.version:
            sha256 = known_objects.get("sha256")
        target_sha256 = target_info.sha256 or (
            known_objects.get("sha256") if known_objects.get("version") == target_info.version else None
        )
        if sha256 is None or target_sha256 is None:
            # If both servers have a digest of the same kind, neither object needs to be read.
            for name in ("md5", "crc32c"):
                source_value, target_value = getattr(source, name), getattr(target_info, name)
                if None not in (source_value, target_value):
                    is_same = source_value == target_value
                    return (
                        ("skip" if is_same else "replace"),
                        sha256 or target_sha256 if is_same else sha256,
                        f"same {name}" if is_same else f"different {name} at the destination",
                    )
        sha256 = sha256 or _read_digest(self.source, source)
        target_sha256 = target_sha256 or _read_digest(self.destination, target_info)
        return (
            ("skip", sha256, "same sha256")
            if sha256 == target_sha256
            else ("replace", sha256, "different sha256 at the destination")
        )

    def _copy(self, item: SyncItem, on_moved: Progress | None) -> str | None:
        """Copy one object; return its SHA-256 if it passed through this machine."""
        if self.server is not None:
            return self._copy_on_server(item)
        if item.bytes > self.piece_bytes:
            return self._copy_in_pieces(item, on_moved)
        path = self.work / "object"
        try:
            info = self.source.download(item.key, path, sha256=item.sha256, progress=on_moved)
        except CorruptSourceError:
            # If the object no longer has the planned version, report that it was replaced, not that it is damaged.
            self._require_planned_item(item, self.source.head(item.key))
            raise
        self._require_planned_item(item, info)
        digest = item.sha256 or _digest_file(path)
        self.destination.upload(path, item.key, sha256=digest)
        path.unlink()
        return digest

    def _copy_on_server(self, item: SyncItem) -> str | None:
        assert self.server is not None
        store, source_prefix, destination_prefix = self.server
        # Check the source before the copy, because the server copies the current version, which may not be the planned
        # version.
        source_info = self._require_planned_item(item, self.source.head(item.key))
        info = store.copy(f"{source_prefix}{item.key}", f"{destination_prefix}{item.key}")
        for name in ("sha256", "md5", "crc32c"):
            old_value, new_value = getattr(source_info, name), getattr(info, name)
            if None not in (old_value, new_value) and old_value != new_value:
                raise TransferError(
                    f"{self.destination.url}/{item.key}: the copy on the server has a different {name} than its "
                    "source. Run `dataprep sync` again"
                )
        if item.sha256 is not None and info.sha256 is None and source_info.sha256 is None:
            # If the server has no SHA-256 of either object, only reading the copy can show that its bytes match the
            # receipt.
            digest = _read_digest(self.destination, replace(info, key=item.key))
            if digest != item.sha256:
                raise self._build_wrong_receipt_error(item)
        return item.sha256 or source_info.sha256

    def _require_planned_item(self, item: SyncItem, info: ObjectInfo | None) -> ObjectInfo:
        """Return the object found at the source; raise ConflictError unless it has the planned version."""
        if info is None or info.version != item.version:
            raise ConflictError(
                f"{self.source.url}/{item.key}: replaced while it was being copied. Run `dataprep sync` again"
            )
        return info

    def _copy_in_pieces(self, item: SyncItem, on_moved: Progress | None) -> str:
        """Copy a big object in pieces. Pieces that a killed sync uploaded are read again, but not uploaded again."""
        # Include the version in the name, so that pieces of different versions are never composed.
        area = f"{PIECES}{hashlib.sha256(f'{item.key} {item.version}'.encode()).hexdigest()[:32]}/"
        total_digest, pieces, path = hashlib.sha256(), [], self.work / "piece"
        for number, start in enumerate(range(0, item.bytes, self.piece_bytes)):
            stop = min(start + self.piece_bytes, item.bytes)
            piece = hashlib.sha256()
            with path.open("wb") as file:
                for block in self.source.read(item.key, start, stop, version=item.version):
                    file.write(block)
                    piece.update(block)
                    total_digest.update(block)
                    if on_moved is not None:
                        on_moved(len(block))
            key = f"{area}{number:06d}"
            present_info = self.destination.head(key)
            if (
                present_info is None
                or (present_info.sha256 or _read_digest(self.destination, present_info)) != piece.hexdigest()
            ):
                self.destination.upload(path, key, sha256=piece.hexdigest())
            pieces.append(key)
        path.unlink()
        if item.sha256 is not None and total_digest.hexdigest() != item.sha256:
            raise self._build_wrong_receipt_error(item)
        self.destination.compose(pieces, item.key, sha256=total_digest.hexdigest())
        for key in pieces:
            self.destination.delete(key)
        return total_digest.hexdigest()

    def _build_wrong_receipt_error(self, item: SyncItem) -> IntegrityError:
        return IntegrityError(f"{self.source.url}/{item.key}: does not match its receipt. Rebuild the artifact")

    def _read_kept_manifest(self) -> dict[str, dict[str, Any]]:
        """Return the entries of an earlier sync's manifest. Damaged entries are omitted."""
        try:
            if self.destination.head(MANIFEST) is None:
                return {}
            entries = load_untrusted_json(b"".join(self.destination.read(MANIFEST)))["objects"].items()
        except (ValueError, KeyError, TypeError, AttributeError):
            return {}
        return {
            key: entry
            for key, entry in entries
            if isinstance(entry, dict) and isinstance(entry.get("sha256"), str | None)
        }

    def _write_manifest(self, plan: SyncPlan, done_objects: Mapping[str, Mapping[str, Any]]) -> None:
        """Write a manifest of all objects that this sync and earlier ones copied, so that partial syncs add up."""
        old_entries = {key: value for key, value in self._read_kept_manifest().items() if key not in done_objects}
        value = {
            "schema_version": 1,
            "source": self.source.url,
            "destination": self.destination.url,
            "findings": list(plan.findings),
            "objects": dict(sorted({**old_entries, **done_objects}.items())),
        }
        self.destination.put(MANIFEST, json.dumps(value, indent=1, sort_keys=True).encode() + b"\n")

    @property
    def _journal_path(self) -> Path:
        return self.work / "journal.jsonl"

    def _write_to_journal(self, item: SyncItem, sha256: str | None) -> None:
        if sha256 is not None:
            with open(self._journal_path, "a", opener=open_own_file) as file:
                file.write(json.dumps([item.key, item.version, sha256]) + "\n")

    def _read_journal(self) -> Iterator[tuple[tuple[str, str], str]]:
        try:
            lines = self._journal_path.read_text().splitlines()
        except OSError:
            return
        for line in lines:
            try:
                key, version, sha256 = load_untrusted_json(line)
            except (ValueError, TypeError):
                continue  # the line is damaged, or was truncated by a kill
            if isinstance(key, str) and isinstance(version, str) and isinstance(sha256, str):
                yield (key, version), sha256


def find_irregularities(objects: Sequence[ObjectInfo]) -> Iterator[str]:
    """Yield irregularities among `train_000000.npy` and `sample_ids_000000.bin`, one sentence each.

    See docs/formats/npy-shards.md#layout.
    """
    shards: dict[tuple[str, str], dict[int, int]] = {}
    ids: dict[str, dict[int, int]] = {}
    for info in objects:
        if match := _SHARD.fullmatch(info.key):
            shards.setdefault((match["folder"], match["split"]), {})[int(match["index"])] = info.bytes
        elif match := _IDS.fullmatch(info.key):
            ids.setdefault(match["folder"], {})[int(match["index"])] = info.bytes
    for (folder, split), sizes in sorted(shards.items()):
        location = f"{folder}{split}"
        if missing := sorted(set(range(max(sizes) + 1)) - set(sizes)):
            yield f"{location}: missing shards: {', '.join(f'{i:06d}' for i in missing)}"
        usual = max(set(sizes.values()), key=list(sizes.values()).count)
        for index, size in sorted(sizes.items()):
            name = f"{location}_{index:06d}.npy"
            if size < _NPY_HEADER or (size - _NPY_HEADER) % 4:
                yield f"{name}: must have 128 bytes plus 4 bytes per token, but has {count_of(size, 'byte')}"
            elif size != usual:
                yield f"{name}: has {count_of(size, 'byte')}, but most other shards have {usual:,}"
        if split == "train":
            yield from _find_odd_ids(folder, sizes, ids.get(folder, {}))


def _find_odd_ids(folder: str, shards: Mapping[int, int], ids: Mapping[int, int]) -> Iterator[str]:
    """Yield a sentence for each file of sample ids that is missing, has no shard, or does not fit its shard."""
    lengths = set()
    for index, size in sorted(shards.items()):
        name = f"{folder}sample_ids_{index:06d}.bin"
        if index not in ids:
            yield f"{name}: is missing, although {folder}train_{index:06d}.npy exists"
            continue
        tokens, samples = (size - _NPY_HEADER) // 4, ids[index] // 8
        if ids[index] % 8 or not samples or tokens % samples:
            yield (
                f"{name}: has {count_of(ids[index], 'byte')}, but must have 8 bytes per sample of the shard, which has "
                f"{count_of(tokens, 'token')}"
            )
        else:
            lengths.add(tokens // samples)
    if len(lengths) > 1:
        lengths_text = ", ".join(map(str, sorted(lengths)))
        yield f"{folder}sample_ids: all samples must have the same length, but their lengths are {lengths_text} tokens"
    for index in sorted(set(ids) - set(shards)):
        yield f"{folder}sample_ids_{index:06d}.bin: train_{index:06d}.npy is missing"


def _is_receipt(key: str) -> bool:
    return key.rpartition("/")[2] == NAME


def _list_receipts_above(key: str) -> set[str]:
    """Return the keys of the receipts that could list this object."""
    return {str(folder / NAME) for folder in PurePosixPath(key).parents}


def _build_sort_key(key: str) -> tuple[str, str]:
    """Return a sort key: folder by folder, with the objects below an artifact before its receipt."""
    folder, slash, name = key.rpartition("/")
    # U+10FFFF is the last code point, so a receipt sorts after all other keys below its folder.
    return (f"{folder}{slash}\U0010ffff" if name == NAME else f"{folder}{slash}", name)


def _read_digest(store: Store, info: ObjectInfo) -> str:
    digest = hashlib.sha256()
    for block in store.read(info.key, version=info.version):
        digest.update(block)
    return digest.hexdigest()


def _digest_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
