"""Artifacts in a bucket are read, joined, verified and found damaged, equally in a folder, on S3 and on GCS."""

import dataclasses
import pickle
from pathlib import Path

import pytest

from dataprep_assets.engine.artifact.build import WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.errors import IntegrityError, MissingArtifactError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactHandle, FileRef
from dataprep_assets.integrity.receipt import NAME
from dataprep_assets.stores.connect import GcsAddress, LocalAddress
from dataprep_assets_tests.fakes.gcs_server import GcsServer
from dataprep_assets_tests.fakes.places import Places
from dataprep_assets_tests.integrity.builds import (
    ARTIFACT,
    CONDITIONAL,
    NEW,
    OLD,
    build,
    make_objects,
    open_store,
    read_artifact,
    read_contents,
)
from dataprep_assets_tests.messages import assert_names, raises


@pytest.mark.parametrize("kind", ["folder", "moto", "swift", "gcs"])
def test_a_published_artifact_is_read_but_not_rebuilt_on_another_machine(
    kind: str, servers: Places, tmp_path: Path
) -> None:
    place = servers.new(kind)
    first = open_store(place, tmp_path / "first")
    receipt, reused = build(first, OLD, "k1")
    assert not reused
    assert read_contents(place) == make_objects(OLD)
    second = pickle.loads(pickle.dumps(open_store(place, tmp_path / "second")))
    assert build(second, {"never": b""}, "k1") == (receipt, True)
    directory = second.local(ARTIFACT)
    assert {n: (directory / n).read_bytes() for n in OLD} == OLD
    assert second.location(ARTIFACT) == f"{place.url}/ds/thing/p-0"
    assert second.receipt(Artifact(dataset="ds", name="nothing")) is None


@pytest.mark.parametrize("kind", CONDITIONAL)
def test_a_replacement_leaves_exactly_the_new_files(kind: str, servers: Places, tmp_path: Path) -> None:
    place = servers.new(kind)
    store = open_store(place, tmp_path)
    build(store, OLD, "k1")
    old = ArtifactHandle.from_store(store, ARTIFACT)
    receipt, reused = build(store, NEW, "k2")
    assert not reused
    assert read_contents(place) == make_objects(NEW)
    assert store.find_current(ARTIFACT, "k2") == receipt
    assert read_artifact(store) == NEW
    far = open_store(place, tmp_path / "far")
    with raises(MissingArtifactError, "replaced"):
        dataclasses.replace(old, store=far).read("a.bin")


@pytest.mark.parametrize("kind", ["folder", "moto", "swift", "gcs"])
def test_a_joined_file_is_composed_by_the_server_from_published_parts(
    kind: str, servers: Places, tmp_path: Path
) -> None:
    place = servers.new(kind)
    store = open_store(place, tmp_path / "first")
    shards = [Artifact(dataset="ds", name="shard", partition=f"s-{n}") for n in range(3)]
    datas = [bytes([n]) * size for n, size in enumerate((6 << 20, 100, 5 << 20))]
    parts = []
    for shard, data in zip(shards, datas, strict=True):
        receipt, _ = build(store, {"t.bin": data}, "s", shard)
        parts.append(FileRef(shard, receipt.file("t.bin")))
    whole = Artifact(dataset="ds", name="whole")
    counts: list[int] = []

    def write(staged: Path) -> WrittenFiles:
        joined = store.join(staged, "all.bin", parts, on_read=counts.append)
        assert sum(counts) == joined.record.bytes, "told while they are read"
        assert not (staged / "all.bin").exists()
        return WrittenFiles(inputs={}, joined=(joined,))

    receipt, _ = ensure_built(Recipe(artifact=whole, key="k"), store, write)
    assert read_contents(place, "ds/whole/") == {"ds/whole/all.bin": b"".join(datas)}
    second = open_store(place, tmp_path / "second")
    assert second.find_current(whole, "k") == receipt
    assert (second.local(whole) / "all.bin").read_bytes() == b"".join(datas)


def test_a_joined_file_is_verified_on_another_machine_without_reading_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with GcsServer() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
        place = GcsAddress(bucket=server.bucket, prefix=tmp_path.name, project="project")
        store = open_store(place, tmp_path / "first")
        parts = []
        for number in range(3):
            shard = Artifact(dataset="ds", name="shard", partition=f"s-{number}")
            parts.append(FileRef(shard, build(store, {"t.bin": b"%d" % number * 1000}, "s", shard)[0].file("t.bin")))
        whole = Artifact(dataset="ds", name="whole")
        joining = len(server.log)
        receipt, _ = ensure_built(
            Recipe(artifact=whole, key="k"),
            store,
            lambda staged: WrittenFiles(inputs={}, joined=(store.join(staged, "all.bin", parts),)),
        )
        assert server.count("compose", since=joining) == 1
        before = len(server.log)
        assert open_store(place, tmp_path / "second").find_current(whole, "k") == receipt
        assert server.count("media", "all.bin", since=before) == 0


@pytest.mark.parametrize("kind", CONDITIONAL)
def test_a_damaged_object_is_found_and_the_artifact_rebuilt(kind: str, servers: Places, tmp_path: Path) -> None:
    place = servers.new(kind)
    store = open_store(place, tmp_path)
    build(store, OLD, "k1")
    place().put(f"{ARTIFACT}/a.bin", b"x" * 1000)
    assert store.find_current(ARTIFACT, "k1") is None
    (defect,) = store.damage(ARTIFACT, store.require(ARTIFACT))
    assert_names(defect, "a.bin")
    with raises((IntegrityError, MissingArtifactError), "a.bin"):
        open_store(place, tmp_path / "far", None).local(ARTIFACT, ["a.bin"])
    assert build(store, OLD, "k1")[1] is False
    assert read_contents(place) == make_objects(OLD)
    place().delete(f"{ARTIFACT}/sub/b.bin")
    assert store.damage(ARTIFACT, store.require(ARTIFACT), "size") == ["sub/b.bin: missing"]


def test_a_truncated_receipt_is_damage_and_is_replaced(tmp_path: Path) -> None:
    place = LocalAddress(root=tmp_path / "bucket")
    store = open_store(place, tmp_path / "cache")
    build(store, OLD, "k1")
    place().put(f"{ARTIFACT}/{NAME}", b"{")
    with raises(IntegrityError, NAME):
        store.receipt(ARTIFACT)
    assert build(store, NEW, "k2")[1] is False
    assert read_contents(place) == make_objects(NEW)
