"""The operations of the GCS store, one per case, with their requests and the verification of their results."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dataprep_assets.stores.gcs import GcsStore
from dataprep_assets_tests.fakes.gcs_server import GcsServer
from dataprep_assets_tests.stores.contract import content, sha256

PART = 64 * 1024
DATA = content(40 * PART + 3)
OLD = b"the old object"


@dataclass(frozen=True, kw_only=True)
class Case:
    """An operation of the store with its requests, its action, and the verification of its result."""

    requests: tuple[str, ...]
    act: Callable[[GcsStore, Path], object]
    right: Callable[[GcsServer, Path, object], bool]
    # `untouched` returns whether nothing is half finished after a failure.
    untouched: Callable[[GcsServer, Path], bool]


def upload(store: GcsStore, folder: Path) -> object:
    (folder / "file").write_bytes(DATA)
    return store.upload(folder / "file", "key", sha256=sha256(DATA))


def keeps_key(server: GcsServer, folder: Path) -> bool:
    return server.objects["key"].data in (OLD, DATA)


PUT = content(3000, "small")

CASES = {
    "head": Case(
        requests=("get",),
        act=lambda store, folder: store.head("key"),
        right=lambda server, folder, result: getattr(result, "bytes", None) == len(OLD),
        untouched=keeps_key,
    ),
    "list": Case(
        requests=("list",),
        act=lambda store, folder: [info.key for info in store.list("parts/")],
        right=lambda server, folder, result: result == [f"parts/{number:02d}" for number in range(40)],
        untouched=keeps_key,
    ),
    "read": Case(
        requests=("media",),
        act=lambda store, folder: b"".join(store.read("source", 100, len(DATA) - 100)),
        right=lambda server, folder, result: result == DATA[100:-100],
        untouched=keeps_key,
    ),
    "put": Case(
        requests=("insert",),
        act=lambda store, folder: store.put("key", PUT),
        right=lambda server, folder, result: server.objects["key"].data == PUT,
        untouched=lambda server, folder: server.objects["key"].data in (OLD, PUT),
    ),
    "put if absent": Case(
        requests=("insert",),
        act=lambda store, folder: store.put("new", PUT, if_absent=True),
        right=lambda server, folder, result: server.objects["new"].data == PUT,
        untouched=lambda server, folder: "new" not in server.objects or server.objects["new"].data == PUT,
    ),
    "upload": Case(
        requests=("insert", "compose", "delete"),
        act=upload,
        right=lambda server, folder, result: server.objects["key"].data == DATA,
        untouched=keeps_key,
    ),
    "download": Case(
        requests=("get", "media"),
        act=lambda store, folder: store.download("source", folder / "target", sha256=sha256(DATA)),
        right=lambda server, folder, result: (folder / "target").read_bytes() == DATA,
        untouched=lambda server, folder: not (folder / "target").exists(),
    ),
    "compose": Case(
        requests=("get", "compose", "delete"),
        act=lambda store, folder: store.compose([f"parts/{number:02d}" for number in range(40)], "key"),
        right=lambda server, folder, result: server.objects["key"].data == DATA,
        untouched=keeps_key,
    ),
    "copy": Case(
        requests=("get", "rewrite"),
        act=lambda store, folder: store.copy("source", "key"),
        right=lambda server, folder, result: server.objects["key"].data == DATA,
        untouched=keeps_key,
    ),
    "delete": Case(
        requests=("delete",),
        act=lambda store, folder: store.delete("key"),
        right=lambda server, folder, result: "key" not in server.objects,
        untouched=lambda server, folder: True,
    ),
    "sweep": Case(
        requests=("list", "delete"),
        act=lambda store, folder: store.sweep(),
        right=lambda server, folder, result: not any(name.startswith(".uploads/") for name in server.objects),
        untouched=keeps_key,
    ),
}
