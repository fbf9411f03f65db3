"""Test of all operations that dataprep needs from a store, before a long job depends on them.

The test uses a scratch prefix, which it removes. Each step reports success, or what to fix. The output contains no
secrets, because a store's errors repeat only the code of the server's response.
"""

import hashlib
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dataprep_assets.errors import DataprepError, count_of
from dataprep_assets.stores.store import ConflictError, ObjectInfo, Store

SCRATCH = ".dataprep-preflight/"
# The size is 1 MiB more than the largest part size of any store, which is S3's (`amazon.s3.PART_BYTES`).
_BIG_BYTES = 17 << 20
"""Size of an upload that needs more than one part."""
_READ_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class PreflightStep:
    """One line of the report. `error` is empty after a success; otherwise it describes the problem and the fix."""

    name: str
    error: str = ""
    tried: bool = True

    @property
    def ok(self) -> bool:
        """Whether the step was tried and succeeded."""
        return self.tried and not self.error


def run_preflight(store: Store) -> Iterator[PreflightStep]:
    """Test the store step by step, and always remove the scratch prefix.

    Steps that depend on a failed step are reported as not tried.
    """
    scratch = f"{SCRATCH}{secrets.token_hex(8)}/"
    with tempfile.TemporaryDirectory() as folder:
        trial = _Trial(store, scratch, Path(folder))
        failed: set[str] = set()
        for name, needs, do in trial.steps():
            if failed & needs:
                failed.add(name)
                yield PreflightStep(name=name, tried=False)
                continue
            step = _try_step(name, do)
            if not step.ok:
                failed.add(name)
            yield step
        if "put" not in failed:
            yield _try_step("delete", trial.delete)


def run_reading_preflight(store: Store, known_names: Sequence[str] = ()) -> Iterator[PreflightStep]:
    """Test the operations that a reader needs on an existing object, without writing anything.

    ``known_names`` are keys that may exist. They are tried before a listing, because a store may not allow listing.
    """
    objects: list[ObjectInfo] = []

    def find_problem() -> str | None:
        sample = next((info for key in known_names if (info := store.head(key)) is not None), None)
        sample = sample or next((info for info in store.list() if info.bytes), None)
        objects.extend([sample] if sample is not None else [])
        return None if sample is not None else "no objects found to read. Check the bucket and prefix"

    def read() -> str | None:
        stop = min(objects[0].bytes, _READ_BYTES)
        byte_count = sum(len(block) for block in store.read(objects[0].key, 0, stop))
        return None if byte_count == stop else f"received {count_of(byte_count, 'byte')}, but {stop} were requested"

    def read_last_byte() -> str | None:
        size = objects[0].bytes
        content = b"".join(store.read(objects[0].key, max(0, size - 1), size))
        return None if len(content) == min(1, size) else "the range of the last byte has a different length"

    yield (step := _try_step("credentials and an object", find_problem))
    for name, do in (("read", read), ("range read", read_last_byte)):
        yield _try_step(name, do) if step.ok else PreflightStep(name=name, tried=False)


def _try_step(name: str, run_step: Callable[[], str | None]) -> PreflightStep:
    try:
        return PreflightStep(name=name, error=run_step() or "")
    except (DataprepError, OSError) as error:
        return PreflightStep(name=name, error=str(error))


class _Trial:
    """Steps of the test, on objects below one prefix. Each step returns an error message, or None."""

    def __init__(self, store: Store, scratch: str, folder: Path) -> None:
        self._store, self._scratch, self._folder = store, scratch, folder
        self._small = secrets.token_bytes(1000)
        self._big = secrets.token_bytes(1 << 20) * (_BIG_BYTES >> 20)

    def steps(self) -> Iterator[tuple[str, set[str], Callable[[], str | None]]]:
        """Yield each step in order: its name, the names of the steps it depends on, and its function."""
        yield "credentials and list", set(), self._test_list
        yield "put", {"credentials and list"}, self._write
        yield "range read back", {"put"}, self._check_read
        yield "conditional put: if absent", {"put"}, self._test_conditional_write
        yield "conditional put: if unchanged", {"put"}, self._test_if_version
        yield "upload in parts", {"put"}, self._upload
        yield "download in ranges", {"upload in parts"}, self._download
        yield "copy on the server", {"upload in parts"}, self._copy
        yield "join on the server", {"upload in parts"}, self._compose

    def delete(self) -> str | None:
        """Remove all objects that the trial created, including unfinished uploads."""
        for info in list(self._store.list(self._scratch)):
            self._store.delete(info.key)
        self._store.sweep(self._scratch)
        remaining_keys = [info.key for info in self._store.list(self._scratch)]
        return (
            f"temporary objects could not be removed: {', '.join(remaining_keys)}. Remove them by hand"
            if remaining_keys
            else None
        )

    def _build_scratch_key(self, name: str) -> str:
        return f"{self._scratch}{name}"

    def _test_list(self) -> None:
        next(self._store.list(self._scratch), None)

    def _write(self) -> str | None:
        self._store.put(self._build_scratch_key("small"), self._small)
        info = self._store.head(self._build_scratch_key("small"))
        return (
            None
            if info is not None and info.bytes == len(self._small)
            else "the object does not exist after it was written"
        )

    def _check_read(self) -> str | None:
        content = b"".join(self._store.read(self._build_scratch_key("small"), 100, 900))
        return (
            None
            if content == self._small[100:900]
            else "the bytes read differ from the bytes written. Do not use this store"
        )

    def _test_conditional_write(self) -> str | None:
        try:
            self._store.put(self._build_scratch_key("small"), b"other", if_absent=True)
        except ConflictError:
            return None
        return (
            "a conditional write (if absent) replaced an object, so two runs could overwrite each other's results. "
            "Use a store that supports If-None-Match (AWS S3, R2, MinIO, GCS)"
        )

    def _test_if_version(self) -> str | None:
        first_info = self._store.put(self._build_scratch_key("version"), b"first")
        second_info = self._store.put(self._build_scratch_key("version"), b"second", if_version=first_info.version)
        try:
            self._store.put(self._build_scratch_key("version"), b"third", if_version=first_info.version)
        except ConflictError:
            return None
        return (
            f"a conditional write (if version {first_info.version}) replaced {second_info.version}, so two runs could "
            "overwrite each other's results. Use a store that supports If-Match (AWS S3, R2, MinIO, GCS)"
        )

    def _upload(self) -> str | None:
        path = self._folder / "big"
        path.write_bytes(self._big)
        self._store.upload(path, self._build_scratch_key("big"), sha256=hashlib.sha256(self._big).hexdigest())
        info = self._store.head(self._build_scratch_key("big"))
        return None if info is not None and info.bytes == len(self._big) else "the object has a different size"

    def _download(self) -> str | None:
        target = self._folder / "back"
        self._store.download(self._build_scratch_key("big"), target, sha256=hashlib.sha256(self._big).hexdigest())
        return None if target.stat().st_size == len(self._big) else "the file has a different size"

    def _copy(self) -> str | None:
        info = self._store.copy(self._build_scratch_key("big"), self._build_scratch_key("copy"))
        return None if info.bytes == len(self._big) else "the copy has a different size"

    def _compose(self) -> str | None:
        # 17 MiB is not a multiple of 5 MiB, so S3 copies some parts on the server and the client assembles one part.
        info = self._store.compose(
            [self._build_scratch_key("big"), self._build_scratch_key("small"), self._build_scratch_key("big")],
            self._build_scratch_key("joined"),
        )
        start = len(self._big) - 10
        content = b"".join(self._store.read(self._build_scratch_key("joined"), start, start + 20))
        right = info.bytes == 2 * len(self._big) + len(self._small) and content == self._big[-10:] + self._small[:10]
        return None if right else "the joined object differs from its parts"
