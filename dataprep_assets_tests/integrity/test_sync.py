"""A sync between any two stores copies equal bytes, nothing twice, completes after a kill, and reports a damaged
source.
"""

import hashlib
import json
import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.errors import CorruptSourceError, IntegrityError
from dataprep_assets.integrity.receipt import NAME
from dataprep_assets.integrity.sync import MANIFEST, Sync, SyncItem, _build_sort_key, find_irregularities
from dataprep_assets.integrity.verify import verify_store
from dataprep_assets.stores.connect import LocalAddress, StoreAddress, find_common_server
from dataprep_assets.stores.store import ConflictError, ObjectInfo, Store
from dataprep_assets_tests import forked
from dataprep_assets_tests.fakes.places import Places
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.corpus.pipeline import run_pipeline, sample_declaration

SHARDS = {
    "tokenized/train_000000.npy": bytes(128 + 4 * 4096),
    "tokenized/train_000001.npy": bytes(127) + b"x" + bytes(4 * 4096),
    "tokenized/sample_ids_000000.bin": bytes(8 * 2),
    "tokenized/sample_ids_000001.bin": b"12345678" * 2,
    "tokenized/val_000000.npy": bytes(128 + 4 * 2048),
    "README": b"",
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> StoreAddress:
    root = tmp_path_factory.mktemp("corpus")
    run_pipeline(sample_declaration(views=["nanogpt"]), root, 2)
    for folder in root.rglob(".staging"):
        for lock in folder.iterdir():
            lock.unlink()
        folder.rmdir()
    return LocalAddress(root=root)


def fill(place: StoreAddress, files: dict[str, bytes]) -> StoreAddress:
    store = place()
    for key, data in files.items():
        store.put(key, data)
    return place


def read_contents(store: Store) -> dict[str, bytes]:
    return {info.key: b"".join(store.read(info.key)) for info in store.list() if info.key != MANIFEST}


def sync(source: StoreAddress, destination: StoreAddress, work: Path, **named: Any) -> Sync:
    return Sync(
        source=source(), destination=destination(), work=work, server=find_common_server(source, destination), **named
    )


@pytest.mark.parametrize(("here", "there"), [("folder", "moto"), ("moto", "gcs"), ("gcs", "folder")])
def test_a_dataset_is_copied_completely_and_a_second_sync_copies_nothing(
    here: str, there: str, servers: Places, corpus: StoreAddress, tmp_path: Path
) -> None:
    source, destination = corpus, servers.new(there)
    if here != "folder":
        source = servers.new(here)
        first = sync(corpus, source, tmp_path / "first")
        first.run(first.plan())
    one = sync(source, destination, tmp_path / "work")
    plan = one.plan()
    assert one.run(plan) == len(plan.items) > 20
    assert read_contents(destination()) == read_contents(corpus())
    assert all(not verdict.defects for verdict in verify_store(destination()))
    manifest = json.loads(b"".join(destination().read(MANIFEST)))
    assert {k: v["sha256"] for k, v in manifest["objects"].items()} == {
        key: hashlib.sha256(data).hexdigest() for key, data in read_contents(corpus()).items()
    }
    again = sync(source, destination, tmp_path / "other").plan()
    assert (again.todo, again.bytes) == ((), 0)
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("kind", ["moto", "gcs"])
def test_within_one_bucket_the_server_copies(kind: str, servers: Places, tmp_path: Path) -> None:
    source: Any = servers.new(kind)
    fill(source, SHARDS)
    destination = replace(source, prefix=f"{source.prefix}-copy")
    one = sync(source, destination, tmp_path / "work")
    assert one.plan().on_server
    one.run(one.plan())
    assert read_contents(destination()) == SHARDS
    assert sync(source, destination, tmp_path / "work").plan().todo == ()


@pytest.mark.parametrize("kind", ["folder", "moto", "gcs"])
def test_only_different_files_are_replaced(kind: str, servers: Places, tmp_path: Path) -> None:
    source = fill(servers.new("folder"), SHARDS)
    destination = fill(servers.new(kind), SHARDS | {"tokenized/train_000001.npy": bytes(128 + 4 * 4096), "own": b"o"})
    one = sync(source, destination, tmp_path / "work")
    plan = one.plan()
    assert [(item.key, item.action) for item in plan.todo] == [("tokenized/train_000001.npy", "replace")]
    one.run(plan)
    assert read_contents(destination()) == SHARDS | {"own": b"o"}


def test_receipts_are_copied_last_and_an_outdated_one_is_removed_first(corpus: StoreAddress, tmp_path: Path) -> None:
    destination = LocalAddress(root=tmp_path / "there")
    one = sync(corpus, destination, tmp_path / "work")
    order = [item.key for item in one.plan().items]
    for key in order:
        folder = key.rpartition("/")[0]
        if key.endswith(f"/{NAME}"):
            assert all(
                order.index(other) < order.index(key)
                for other in order
                if other.startswith(f"{folder}/") and other != key
            )
    assert sorted(["b.bin", NAME, "sub/c.bin", f"sub/{NAME}"], key=_build_sort_key)[-1] == NAME
    one.run(one.plan())
    changed = "sample_corpus/nanogpt_bins"
    destination().put(f"{changed}/{NAME}", b"{}")
    destination().put(f"{changed}/train.bin", b"old")
    there: list[bool] = []

    def look(item: SyncItem) -> None:
        there.append(destination().head(f"{changed}/{NAME}") is not None)

    again = sync(corpus, destination, tmp_path / "work")
    assert again.run(again.plan(), look) == 2
    assert there == [False, True]


def test_a_large_object_is_copied_in_parts_with_one_part_on_disk_at_a_time(servers: Places, tmp_path: Path) -> None:
    data = os.urandom(3 * (6 << 20) + 12345)
    source = fill(servers.new("folder"), {"big.bin": data})
    for kind in ("moto", "gcs", "folder"):
        destination = servers.new(kind)
        one = sync(source, destination, tmp_path / "work", piece_bytes=6 << 20)
        sizes: list[int] = []

        def look(_: int, sizes: list[int] = sizes) -> None:
            sizes.append(sum(path.stat().st_size for path in (tmp_path / "work").glob("*")))

        one.run(one.plan(), on_moved=look)
        assert read_contents(destination()) == {"big.bin": data}
        assert max(sizes) <= (6 << 20) + 1024
        assert sync(source, destination, tmp_path / "work").plan().todo == ()


def test_a_source_that_contradicts_its_receipt_is_not_copied(corpus: StoreAddress, tmp_path: Path) -> None:
    source = LocalAddress(root=tmp_path / "source")
    sync(corpus, source, tmp_path / "w").run(sync(corpus, source, tmp_path / "w").plan())
    key = "sample_corpus/token_bins/train-00000/tokens.bin"
    raw = b"".join(source().read(key))
    source().put(key, bytes([raw[0] ^ 1]) + raw[1:])
    for piece_bytes in (1 << 30, 1000):
        destination = LocalAddress(root=tmp_path / f"there-{piece_bytes}")
        one = sync(source, destination, tmp_path / "work", piece_bytes=piece_bytes)
        with raises((CorruptSourceError, IntegrityError), "tokens.bin"):
            one.run(one.plan())
        assert destination().head(key) is None
        assert destination().head("sample_corpus/token_bins/train-00000/receipt.json") is None


def test_only_selected_keys_are_copied_and_manifests_are_complete(tmp_path: Path) -> None:
    source, destination = fill(LocalAddress(root=tmp_path / "a"), SHARDS), LocalAddress(root=tmp_path / "b")
    for pattern in ("*/train_*", "*/sample_ids_*"):
        one = sync(source, destination, tmp_path / "work", prefix="tokenized/", select=(pattern,))
        one.run(one.plan())
    wanted = {k for k in SHARDS if "train_" in k or "sample_ids_" in k}
    assert read_contents(destination()).keys() == wanted
    assert json.loads(b"".join(destination().read(MANIFEST)))["objects"].keys() == wanted


@pytest.mark.parametrize(
    ("pattern", "damaged"),
    [
        (r".+", ""),
        (r".+", "[]"),
        (r".+", "[" * 100_000),
        (r'("objects": ).*', r"\g<1>1}"),
        (r'("README": )\{.*?\}', r"\g<1>1"),
        (r'("sha256": )"\w+"', r"\g<1>1"),
    ],
    ids=["empty", "a list", "deep", "no objects", "an object of another type", "digests of another type"],
)
def test_a_damaged_manifest_selects_nothing(tmp_path: Path, pattern: str, damaged: str) -> None:
    source, destination = fill(LocalAddress(root=tmp_path / "a"), SHARDS), LocalAddress(root=tmp_path / "b")
    one = sync(source, destination, tmp_path / "work")
    one.run(one.plan())
    written = b"".join(destination().read(MANIFEST))
    spoilt = re.sub(pattern, damaged, written.decode(), flags=re.DOTALL)
    destination().put(MANIFEST, spoilt.encode())
    again = sync(source, destination, tmp_path / "work")
    plan = again.plan()
    assert plan.todo == ()
    again.run(plan)
    assert b"".join(destination().read(MANIFEST)) == written


@pytest.mark.slow
def test_a_sync_that_is_killed_repeatedly_completes_and_copies_nothing_twice(tmp_path: Path) -> None:
    files = {f"folder/{n:03d}.bin": os.urandom(3000) for n in range(12)} | {"big.bin": os.urandom(50_000)}
    source, destination = fill(LocalAddress(root=tmp_path / "a"), files), tmp_path / "b"
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from dataprep_assets.integrity.sync import Sync\n"
        "from dataprep_assets.stores.local import LocalStore\n"
        "class Killing(LocalStore):\n"
        "    left = 3\n"
        "    def upload(self, *a, **k):\n"
        "        self.left -= 1\n"
        "        if not self.left: os.kill(os.getpid(), signal.SIGKILL)\n"
        "        print(a[1], flush=True)\n"
        "        return super().upload(*a, **k)\n"
        "s = Sync(source=LocalStore(Path(sys.argv[1])), destination=Killing(Path(sys.argv[2])),"
        " work=Path(sys.argv[3]), piece_bytes=20_000)\n"
        "s.run(s.plan())\n"
    )
    sent: list[str] = []
    for _ in range(20):
        done = forked.run(["-c", program, tmp_path / "a", destination, tmp_path / "work"])
        sent += done.stdout.split()
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.returncode == 0
    there = LocalAddress(root=destination)
    assert read_contents(there()) == files
    assert sum(key.startswith("folder/") for key in sent) == 12
    assert len(sent) > 12
    assert isinstance(source, LocalAddress)


def test_the_inventory_names_gaps_sizes_and_missing_ids() -> None:
    def found(sizes: dict[str, int]) -> list[str]:
        return list(find_irregularities([ObjectInfo(key=k, bytes=v, version="") for k, v in sizes.items()]))

    good = {key: len(data) for key, data in SHARDS.items()}
    assert found(good) == []
    assert found({k: v for k, v in good.items() if "ids_000001" not in k}) == [
        "tokenized/sample_ids_000001.bin: is missing, although tokenized/train_000001.npy exists"
    ]
    (gap,) = found(
        {"train_000000.npy": 132, "train_000002.npy": 132, "sample_ids_000000.bin": 8, "sample_ids_000002.bin": 8}
    )
    assert gap == "train: missing shards: 000001"
    assert_names("".join(found(good | {"tokenized/val_000000.npy": 131})), 128, 4)
    assert "other shards have" in "".join(
        found({"train_000000.npy": 136, "train_000001.npy": 132, "train_000002.npy": 136})
    )
    assert_names("".join(found(good | {"tokenized/sample_ids_000000.bin": 17})), 8, "bytes")
    assert "the same length" in "".join(found(good | {"tokenized/sample_ids_000000.bin": 8}))
    assert "sample_ids_000007.bin: train_000007.npy is missing" in "".join(
        found(good | {"tokenized/sample_ids_000007.bin": 16})
    )


@pytest.mark.parametrize("planned", ["to be copied", "to be replaced"])
@pytest.mark.parametrize("piece_bytes", [1 << 30, 2])
def test_an_object_that_changes_after_the_plan_is_not_copied(tmp_path: Path, planned: str, piece_bytes: int) -> None:
    source = fill(LocalAddress(root=tmp_path / "a"), {"object": b"one"})
    # If the destination has an object of equal size, planning reads the digest of the source.
    there = {"object": b"old"} if planned == "to be replaced" else {}
    destination = fill(LocalAddress(root=tmp_path / "b"), there)
    one = sync(source, destination, tmp_path / "work", piece_bytes=piece_bytes)
    plan = one.plan()
    source().put("object", b"two")
    with raises(ConflictError, "/a/object"):
        one.run(plan)
    assert read_contents(destination()) == there
    again = sync(source, destination, tmp_path / "work", piece_bytes=piece_bytes)
    again.run(again.plan())
    (recorded,) = json.loads(b"".join(destination().read(MANIFEST)))["objects"].values()
    assert recorded["sha256"] == hashlib.sha256(b"two").hexdigest()
    assert recorded["source_version"] == next(source().list()).version


def test_an_object_that_changes_after_the_copy_is_detected(tmp_path: Path) -> None:
    source, destination = fill(LocalAddress(root=tmp_path / "a"), SHARDS), LocalAddress(root=tmp_path / "b")
    one = sync(source, destination, tmp_path / "work")

    def spoil(item: SyncItem) -> None:
        destination().put(item.key, b"something else")

    with raises(IntegrityError, "changed during", "copy"):
        one.run(one.plan(), spoil)
    assert destination().head(MANIFEST) is None
