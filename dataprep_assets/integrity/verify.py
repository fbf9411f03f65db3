"""Offline verification of any artifact, dataset or storage root, in a folder or a bucket, using only receipts.

It needs neither Dagster nor its database nor the sources. A receipt lists the files of an artifact with sizes and
digests, and its ledger must balance. In a bucket, one listing shows the objects, and `full` reads every byte.
"""

import hashlib
import os
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from dataprep_assets.errors import ConfigError, IntegrityError
from dataprep_assets.integrity.commit import STAGING
from dataprep_assets.integrity.receipt import (
    NAME,
    FileRecord,
    Receipt,
    Verification,
    find_damage,
    parse_receipt,
    read_receipt,
)
from dataprep_assets.stores.connect import LocalAddress, StoreAddress
from dataprep_assets.stores.store import ObjectInfo, Store

_AT_ONCE = 4


@dataclass(frozen=True, kw_only=True)
class VerifiedArtifact:
    """Verdict on one artifact.

    Attributes:
        location: Path or URL.
        name: The artifact's name. If `receipt` is None, the folder's name.
        folder: Names of the folders from the verified location down to the artifact.
        bytes: Size of its files.
        defects: One sentence each. A folder of files without a receipt has none.
        changed_inputs: Inputs whose content has changed since the build. The artifact itself is intact, but out of date
            or obsolete, which only the plan of its dataset decides (`dataprep status`).
        receipt: The receipt; None if it is missing or invalid, or if its ledger does not balance.
    """

    location: str
    name: str
    folder: tuple[str, ...]
    bytes: int = 0
    defects: tuple[str, ...] = ()
    changed_inputs: tuple[str, ...] = ()
    receipt: Receipt | None = None


def verify_path(path: Path, verification: Verification = "full", *, strays: bool = False) -> Iterator[VerifiedArtifact]:
    """Yield the verdict on every artifact below a path, compared with its receipt and the receipts of its inputs.

    With `strays`, then also yield the folders with files that belong to no artifact.
    """
    return _verify(_Folder(path.absolute()), verification, strays)


def verify_store(
    store: Store, verification: Verification = "full", *, strays: bool = False
) -> Iterator[VerifiedArtifact]:
    """Verify a bucket, or a prefix of one, like `verify_path`."""
    return _verify(_Bucket(store), verification, strays)


def verify_place(
    place: StoreAddress, verification: Verification = "full", *, dataset: str | None = None, strays: bool = False
) -> Iterator[VerifiedArtifact]:
    """Verify a folder or a bucket, like `verify_path`. If `dataset` has a folder there, verify only that folder.

    Raises ConfigError if the folder does not exist.
    """
    address = place if dataset is None else find_dataset_place(place, dataset)
    if not isinstance(address, LocalAddress):
        return verify_store(address(), verification, strays=strays)
    if not address.root.exists():
        raise ConfigError(f"{address.root}: no artifacts found to verify. Run `dataprep run NAME` to build a dataset")
    return verify_path(address.root, verification, strays=strays)


def find_dataset_place(place: StoreAddress, dataset: str) -> StoreAddress:
    """Return the location of a dataset's folder, so that only it is read; `place` itself if it has no such folder."""
    if isinstance(place, LocalAddress):
        dataset_folder = place.root / dataset
        return replace(place, root=dataset_folder) if dataset_folder.is_dir() else place
    narrow = replace(place, prefix=f"{place.prefix}/{dataset}".lstrip("/"))
    return place if next(narrow().list(), None) is None else narrow


def name_by_folder(folder: Sequence[str], receipt: Receipt) -> tuple[tuple[str, ...], str]:
    """Return the folders above an artifact, and the artifact's name according to its folder.

    A copy under another name is a different artifact.

    Args:
        folder: Names of the folders from the location down to the artifact. Folders above the location may have any
            name.
        receipt: The artifact's receipt, which shows whether it is a partition.

    Returns:
        The folders from the location to the dataset's folder (`..` if that is above the location), and
        `name[/partition]`.
    """
    own_name = tuple(filter(None, (receipt.artifact, receipt.partition)))
    parent_count = len(own_name) - len(folder)
    if parent_count > 0:
        return ("..",) * parent_count, "/".join((*own_name[:parent_count], *folder))
    return tuple(folder[: -len(own_name)]), "/".join(folder[-len(own_name) :])


def read_receipts_below(path: Path) -> Iterator[tuple[str, Receipt]]:
    """Yield the receipts of all artifacts below a path, with their names by folder: `name[/partition]`.

    Raises IntegrityError for a damaged receipt. No other files are read.
    """
    return _read_receipts(_Folder(path.absolute()))


def read_store_receipts(store: Store) -> Iterator[tuple[str, Receipt]]:
    """Yield the receipts in a bucket, or in a prefix of one, like `read_receipts_below`."""
    return _read_receipts(_Bucket(store))


class _Tree(ABC):
    """A location with artifacts, which are identified by their paths below it; `.` is the root itself."""

    @abstractmethod
    def artifacts(self) -> Iterator[PurePosixPath]:
        """Yield every path that has a receipt, in name order."""

    @abstractmethod
    def strays(self) -> Iterator[PurePosixPath]:
        """Yield every folder with files that belong to no artifact, in name order.

        Internal files, whose names start with a dot, and files directly in the root are ignored.
        """

    @abstractmethod
    def folder(self, path: PurePosixPath) -> tuple[str, ...]:
        """Return the names of the folders from the root down to this path."""

    @abstractmethod
    def location(self, path: PurePosixPath) -> str:
        """Return the path or URL of the artifact, for messages."""

    @abstractmethod
    def receipt(self, path: PurePosixPath) -> Receipt | None:
        """Return the receipt at a path; raise IntegrityError if it is damaged."""

    @abstractmethod
    def damage(self, path: PurePosixPath, receipt: Receipt, verification: Verification) -> list[str]:
        """Return the defects of the files, one sentence each."""

    @abstractmethod
    def dataset(self, path: PurePosixPath, receipt: Receipt) -> PurePosixPath | None:
        """Return the path of an artifact's dataset; None if it is above the root."""

    @abstractmethod
    def has(self, path: PurePosixPath) -> bool:
        """Return whether any file exists below this path."""


def _find_verdict(tree: _Tree, path: PurePosixPath, receipt: Receipt, verification: Verification) -> VerifiedArtifact:
    """Return the verdict on an artifact; raise IntegrityError if its ledger does not balance."""
    missing, changed = _compare_inputs(tree, path, receipt)
    if receipt.ledger is not None:
        receipt.ledger.require_balance(tree.location(path))
    lost = [f"its input {name} is missing. Rebuild {name}" for name in missing]
    return VerifiedArtifact(
        location=tree.location(path),
        name="/".join(filter(None, (receipt.dataset, receipt.artifact, receipt.partition))),
        folder=tree.folder(path),
        bytes=receipt.total_bytes,
        defects=(*tree.damage(path, receipt, verification), *_find_contradictions(receipt), *lost),
        changed_inputs=tuple(changed),
        receipt=receipt,
    )


def _verify(tree: _Tree, verification: Verification, strays: bool) -> Iterator[VerifiedArtifact]:
    for path in tree.artifacts():
        try:
            if (receipt := tree.receipt(path)) is None:  # the artifact was removed meanwhile
                continue
            verdict = _find_verdict(tree, path, receipt, verification)
            if verdict.defects and (now := tree.receipt(path)) != receipt:  # the artifact was removed or replaced
                if now is None:
                    continue
                verdict = _find_verdict(tree, path, now, verification)
        except IntegrityError as error:
            folder = tree.folder(path)
            verdict = VerifiedArtifact(
                location=tree.location(path), name=path.name, folder=folder, defects=(str(error),)
            )
        yield verdict
    for path in tree.strays() if strays else ():
        yield VerifiedArtifact(location=tree.location(path), name=path.name, folder=tree.folder(path))


def _read_receipts(tree: _Tree) -> Iterator[tuple[str, Receipt]]:
    paths = list(tree.artifacts())
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for path, receipt in zip(paths, threads.map(tree.receipt, paths), strict=True):
            if receipt is not None:
                yield name_by_folder(tree.folder(path), receipt)[1], receipt


def _find_contradictions(receipt: Receipt) -> Iterator[str]:
    """Yield a sentence for each input whose digest differs between the receipt's inputs and its recipe."""
    expected_digests: dict[str, set[str]] = {
        name: {digest} for name, digest in receipt.recipe.get("sources", {}).items()
    }
    for name, content in _list_upstream(receipt).items():
        # `receipt.inputs` names an input only by its partition, so different upstream artifacts may have the same name.
        expected_digests.setdefault(name.partition("/")[2], set()).add(content)
    for name, digest in receipt.inputs.items():
        if name in expected_digests and digest not in expected_digests[name]:
            yield (
                f"the receipt contradicts itself: its input {name} has the digest {digest}, but its recipe has a "
                "different digest. Rebuild the artifact"
            )


def _compare_inputs(tree: _Tree, path: PurePosixPath, receipt: Receipt) -> tuple[list[str], list[str]]:
    """Return the input artifacts that are missing, and the input artifacts whose content has changed.

    A kind of input is ignored if it is absent here, because a dataset may have been published without its shards.
    """
    dataset = tree.dataset(path, receipt)
    missing: list[str] = []
    changed: list[str] = []
    if dataset is None:
        return missing, changed
    kind_presence: dict[PurePosixPath, bool] = {}
    for name, content in sorted(_list_upstream(receipt).items()):
        other_dataset, _, own_name = name.rpartition(":")
        input_path = dataset.parent / other_dataset / own_name if other_dataset else dataset / own_name
        kind = (dataset.parent / other_dataset if other_dataset else dataset) / own_name.partition("/")[0]
        if not kind_presence.setdefault(kind, tree.has(kind)):
            continue
        try:
            input_receipt = tree.receipt(input_path)
        except IntegrityError:
            continue  # the verdict on the input reports the error
        if input_receipt is None:
            missing.append(name)
        elif input_receipt.content != content:
            changed.append(name)
    return missing, changed


def _list_upstream(receipt: Receipt) -> Mapping[str, str]:
    """Return `[dataset:]name[/partition]` → content of each input artifact."""
    upstream: Mapping[str, str] = receipt.recipe.get("upstream", {})
    return upstream


@dataclass(frozen=True)
class _Folder(_Tree):
    """Artifacts in a folder.

    Paths are absolute, so that the inputs of an artifact are found even if only that artifact is verified.
    """

    root: Path

    def artifacts(self) -> Iterator[PurePosixPath]:
        for folder, folders, names in os.walk(self.root):
            # Also report a folder in which the receipt is a folder, because this is damage and not the absence of an
            # artifact.
            if NAME in names or NAME in folders:
                yield PurePosixPath(folder)
            folders[:] = sorted(f for f in folders if f not in (STAGING, NAME) and not f.startswith(".aside-"))
            # Report links to folders, because `os.walk` does not follow them and would silently skip an artifact.
            yield from (PurePosixPath(folder, f) for f in folders if os.path.islink(os.path.join(folder, f)))

    def strays(self) -> Iterator[PurePosixPath]:
        for folder, folders, names in os.walk(self.root):
            if NAME in names:
                folders[:] = []
                continue
            folders[:] = sorted(f for f in folders if not f.startswith("."))
            if Path(folder) != self.root and any(not name.startswith(".") for name in names):
                yield PurePosixPath(folder)

    def folder(self, path: PurePosixPath) -> tuple[str, ...]:
        return path.relative_to(self.root).parts

    def location(self, path: PurePosixPath) -> str:
        return str(path)

    def receipt(self, path: PurePosixPath) -> Receipt | None:
        # Only the root may be a link, because the user named it explicitly.
        if path != PurePosixPath(self.root) and Path(path).is_symlink():
            raise IntegrityError(
                f"{path}: is a link to a folder, whose files do not belong to the artifact. Verify that folder "
                "separately"
            )
        return read_receipt(Path(path))

    def damage(self, path: PurePosixPath, receipt: Receipt, verification: Verification) -> list[str]:
        return find_damage(Path(path), receipt, verification)

    def dataset(self, path: PurePosixPath, receipt: Receipt) -> PurePosixPath | None:
        return path.parents[1] if receipt.partition else path.parent

    def has(self, path: PurePosixPath) -> bool:
        return Path(path).is_dir()


class _Bucket(_Tree):
    """Artifacts in a bucket, or below a prefix of one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # List the bucket once for all artifacts. The keys below an artifact are a slice of the sorted keys
        # (`_list_keys_below`).
        self._objects = {info.key: info for info in store.list()}
        self._keys = sorted(self._objects)

    def artifacts(self) -> Iterator[PurePosixPath]:
        paths = (PurePosixPath(key).parent for key in self._objects if PurePosixPath(key).name == NAME)
        return iter(sorted(path for path in paths if STAGING not in path.parts))

    def strays(self) -> Iterator[PurePosixPath]:
        own_artifacts = set(self.artifacts())
        folders = {
            key.parent
            for key in map(PurePosixPath, self._keys)
            if not any(part.startswith(".") for part in key.parts) and own_artifacts.isdisjoint(key.parents)
        }
        return iter(sorted(folders - {PurePosixPath()}))

    def folder(self, path: PurePosixPath) -> tuple[str, ...]:
        return path.parts

    def location(self, path: PurePosixPath) -> str:
        return self._store.url if path == PurePosixPath() else f"{self._store.url}/{path}"

    def receipt(self, path: PurePosixPath) -> Receipt | None:
        info = self._objects.get(str(path / NAME))
        if info is None:
            return None
        data = b"".join(self._store.read(info.key, version=info.version))
        return parse_receipt(data, f"{self._store.url}/{info.key}")

    def damage(self, path: PurePosixPath, receipt: Receipt, verification: Verification) -> list[str]:
        relative_path = self._list_keys_below(path)
        # If a file of this content is staged, check the staged object (in `<content>-<base>/`), as every reader does,
        # because an unsettled publication may not have copied the file to its final key.
        area = f"{path / STAGING / receipt.content[:32]}-"
        staged = {key.removeprefix(area).partition("/")[2]: key for key in relative_path if key.startswith(area)}

        def find_defect(record: FileRecord) -> str:
            info = self._objects.get(staged.get(record.path, "")) or self._objects.get(str(path / record.path))
            return self._find_defect(record, info, verification)

        with ThreadPoolExecutor(_AT_ONCE) as threads:
            defects = [sentence for sentence in threads.map(find_defect, receipt.files) if sentence]
        listed_keys = {str(path / record.path) for record in receipt.files} | {str(path / NAME)}
        for key in relative_path:
            name = PurePosixPath(key).relative_to(path)
            # Staged objects are not part of the artifact, at least not yet.
            if key not in listed_keys and STAGING not in name.parts:
                defects.append(f"{name}: not in the receipt")
        return defects

    def _list_keys_below(self, path: PurePosixPath) -> list[str]:
        prefix = "" if path == PurePosixPath() else f"{path}/"
        # U+10FFFF is the last code point, so this string sorts after all keys below the path.
        return self._keys[bisect_left(self._keys, prefix) : bisect_left(self._keys, f"{prefix}\U0010ffff")]

    def _find_defect(self, record: FileRecord, info: ObjectInfo | None, verification: Verification) -> str:
        if info is None:
            return f"{record.path}: missing"
        if info.bytes != record.bytes:
            return record.describe_size_defect(info.bytes)
        if verification == "full":
            digest = hashlib.sha256()
            for block in self._store.read(info.key, version=info.version):
                digest.update(block)
            if digest.hexdigest() != record.sha256:
                return record.describe_digest_defect(digest.hexdigest())
        return ""

    def dataset(self, path: PurePosixPath, receipt: Receipt) -> PurePosixPath | None:
        levels = 2 if receipt.partition else 1
        return path.parents[levels - 1] if len(path.parts) >= levels else None

    def has(self, path: PurePosixPath) -> bool:
        return bool(self._list_keys_below(path))
