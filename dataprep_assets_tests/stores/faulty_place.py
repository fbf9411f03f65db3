"""A bucket behind faults, and each operation of the S3 store on it with the expected state afterwards."""

from pathlib import Path

from dataprep_assets.errors import MissingArtifactError
from dataprep_assets.stores.amazon.api import build_s3_client_config, create_s3_client
from dataprep_assets.stores.amazon.s3 import S3Store
from dataprep_assets.stores.retry import RetryPolicy
from dataprep_assets_tests.fakes.buckets import PART_BYTES, make_place, new_store
from dataprep_assets_tests.fakes.fault_proxy import Fault, FaultProxy, Kind
from dataprep_assets_tests.stores.contract import content, sha256

SMALL, LARGE = content(300_000, "small"), content(PART_BYTES + 12_345, "large")
# Two sources whose boundary is inside a part: one part is copied, and one is read and sent.
HALVES = content(5 * 1024 * 1024 + 70_000, "first"), content(50_000, "second")
# Read limits in seconds. The shorter one is for tests of stalls, which last until the limit. A busy machine may need
# the longer one for all other answers.
READ_SECONDS, STALL_SECONDS = 5.0, 0.5


class Place:
    """A bucket prepared for the operations, with a store that uses the fault proxy and one that bypasses it."""

    def __init__(self, url: str, bucket: str, proxy: FaultProxy, folder: Path) -> None:
        self.proxy, self.folder, self.bucket = proxy, folder, bucket
        self.patient = new_store(proxy.url, bucket, read_seconds=READ_SECONDS, copy_bytes=PART_BYTES)
        # Set the connect limit too, because urllib3 applies it while the server does not accept the request's body.
        config = build_s3_client_config(connect_seconds=STALL_SECONDS, read_seconds=STALL_SECONDS)
        client = create_s3_client(make_place(proxy.url), config)
        # Allow many attempts, because a busy machine may send answers only after the shorter limit.
        retry = RetryPolicy(attempts=20, base_seconds=0, max_seconds=0)
        sizes = {"part_bytes": PART_BYTES, "range_bytes": PART_BYTES, "copy_bytes": PART_BYTES}
        self.impatient = S3Store(client, bucket, retry=retry, workers=4, **sizes)
        self.store = self.patient
        self.url, self.direct = url, new_store(url, bucket)

    def fail(self, kind: Kind, step: str, *, times: int = 1) -> None:
        """Make the next requests of a step fail; the store waits only as long as necessary."""
        self.proxy.faults = [Fault(kind, step, times, retry_after="0" if kind in ("503", "429") else None)]
        self.store = self.impatient if kind == "stall" else self.patient

    def prepare(self) -> None:
        self.direct.put("small", SMALL)
        self._upload(self.direct, "large", LARGE)
        for name, data in zip(("first", "second"), HALVES, strict=True):
            self._upload(self.direct, name, data)

    def _upload(self, store: S3Store, key: str, data: bytes) -> None:
        path = self.folder / "source"
        path.write_bytes(data)
        store.upload(path, key, sha256=sha256(data))

    # Each function executes one operation through the proxy, and returns (current state, expected state).

    def put(self) -> tuple[bytes | None, bytes]:
        self.store.put("new", SMALL)
        return self.bytes_of("new"), SMALL

    def put_if_absent(self) -> tuple[bytes | None, bytes]:
        self.store.put("new", SMALL, if_absent=True)
        return self.bytes_of("new"), SMALL

    def upload_small(self) -> tuple[bytes | None, bytes]:
        self._upload(self.store, "new", SMALL)
        return self.bytes_of("new"), SMALL

    def upload_large(self) -> tuple[bytes | None, bytes]:
        self._upload(self.store, "new", LARGE)
        return self.bytes_of("new"), LARGE

    def download(self) -> tuple[bytes | None, bytes]:
        target = self.folder / "target"
        self.store.download("large", target)
        return target.read_bytes(), LARGE

    def read(self) -> tuple[bytes | None, bytes]:
        return b"".join(self.store.read("large", 1000, PART_BYTES)), LARGE[1000:PART_BYTES]

    def list(self) -> tuple[bytes | None, bytes]:
        return b" ".join(info.key.encode() for info in self.store.list()), b"first large second small"

    def head(self) -> tuple[bytes | None, bytes]:
        info = self.store.head("small")
        return (str(info.sha256).encode() if info else None), sha256(SMALL).encode()

    def copy(self) -> tuple[bytes | None, bytes]:
        self.store.copy("small", "new")
        return self.bytes_of("new"), SMALL

    def copy_large(self) -> tuple[bytes | None, bytes]:
        self.store.copy("large", "new")
        return self.bytes_of("new"), LARGE

    def compose(self) -> tuple[bytes | None, bytes]:
        self.store.compose(["first", "second"], "new")
        return self.bytes_of("new"), b"".join(HALVES)

    def delete(self) -> tuple[bytes | None, bytes]:
        self.direct.put("new", SMALL)
        self.store.delete("new")
        return b"gone" if self.direct.head("new") is None else None, b"gone"

    def bytes_of(self, key: str) -> bytes | None:
        try:
            return b"".join(self.direct.read(key))
        except MissingArtifactError:
            return None
