"""Build one small artifact over any store, in this process or in one that is killed before a write."""

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.integrity.artifacts import Artifact, ArtifactHandle, ArtifactStore
from dataprep_assets.integrity.bucket import BucketArtifacts
from dataprep_assets.integrity.receipt import NAME
from dataprep_assets.stores.connect import StoreAddress
from dataprep_assets.stores.local import LocalStore
from dataprep_assets.stores.store import ObjectInfo, Store
from dataprep_assets_tests import forked


class StreamFacts(Facts):
    """The facts of a stream of ids."""

    dtype: str


ARTIFACT = Artifact(dataset="ds", name="thing", partition="p-0")
OLD = {"a.bin": b"a" * 1000, "sub/b.bin": b"b" * 2000, "gone.bin": b"g" * 10}
NEW = {"a.bin": b"A" * 1000, "sub/b.bin": b"b" * 2000, "more.bin": b"m" * 30}
CONDITIONAL = ("folder", "moto", "gcs")
"""Swift has no conditional replacement (If-Match), so only first publications are tested with it."""


def open_store(place: StoreAddress, root: Path, budget: int | None = None) -> BucketArtifacts:
    return BucketArtifacts(root, place, place.url, budget)


def build(store: ArtifactStore, files: dict[str, bytes], key: str, artifact: Artifact = ARTIFACT) -> tuple[Any, bool]:
    def write(staged: Path) -> WrittenFiles:
        for name, data in files.items():
            (staged / name).parent.mkdir(parents=True, exist_ok=True)
            (staged / name).write_bytes(data)
        return WrittenFiles(inputs={}, facts=StreamFacts(dtype="uint16"))

    return ensure_built(Recipe(artifact=artifact, key=key), store, write)


def read_contents(place: StoreAddress, below: str = "") -> dict[str, bytes]:
    """Return key → bytes of everything at the location except receipts."""
    store = place()
    return {
        info.key: b"".join(store.read(info.key)) for info in store.list(below) if info.key.rpartition("/")[2] != NAME
    }


def make_objects(files: dict[str, bytes], artifact: Artifact = ARTIFACT) -> dict[str, bytes]:
    return {f"{artifact}/{name}": data for name, data in files.items()}


def read_artifact(store: BucketArtifacts, artifact: Artifact = ARTIFACT) -> dict[str, bytes]:
    """Return the contents that a reader gets by following the receipt."""
    handle = ArtifactHandle.from_store(store, artifact)
    return {record.path: handle.read(record.path) for record in handle.files}


class KillingStore(LocalStore):
    """A store that ends its process at the n-th call that writes."""

    def __init__(self, root: Path, at: int) -> None:
        super().__init__(root)
        self.left = at

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_version: str | None = None) -> ObjectInfo:
        self._count()
        return super().put(key, data, if_absent=if_absent, if_version=if_version)

    def upload(self, path: Path, key: str, **named: Any) -> ObjectInfo:
        self._count()
        return super().upload(path, key, **named)

    def compose(self, keys: Sequence[str], key: str, *, sha256: str | None = None) -> ObjectInfo:
        self._count()
        return super().compose(keys, key, sha256=sha256)

    def delete(self, key: str) -> None:
        self._count()
        super().delete(key)


@dataclass(frozen=True)
class KillingPlace:
    root: Path
    at: int

    def __call__(self) -> Store:
        return KillingStore(self.root, self.at)


def main(bucket: str, cache: str, version: str, at: str) -> None:
    store = BucketArtifacts(Path(cache), KillingPlace(Path(bucket), int(at)), "file://bucket")
    build(store, OLD if version == "old" else NEW, version)


def run_killed(bucket: Path, cache: Path, version: str, at: int) -> bool:
    """Run `main` in a process, and return whether it was killed."""
    program = f"from {__name__} import main; import sys; main(*sys.argv[1:])"
    done = forked.run(["-c", program, bucket, cache, version, at])
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0
