"""The pipeline of the sample corpus on a folder, S3 and GCS: the same bytes, and nothing done twice."""

from pathlib import Path

import pytest

from dataprep_assets.integrity.bucket import BucketArtifacts
from dataprep_assets.integrity.receipt import NAME
from dataprep_assets.integrity.verify import verify_path, verify_store
from dataprep_assets.stores.connect import StoreAddress
from dataprep_assets_tests.fakes.places import Places
from dataprep_assets_tests.pipelines.corpus.pipeline import data_files, run_pipeline, sample_declaration

pytestmark = pytest.mark.slow


DECLARED = sample_declaration(views=["nanogpt"])


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("local")
    run_pipeline(DECLARED, root, 2)
    return root


def opened(place: StoreAddress, root: Path) -> BucketArtifacts:
    return BucketArtifacts(root, place, place.url, 1 << 30)


def keys_and_versions(place: StoreAddress) -> dict[str, str]:
    return {info.key: info.version for info in place().list()}


@pytest.mark.parametrize("kind", ["moto", "gcs"])
def test_bytes_are_those_of_the_folder_and_a_second_machine_rebuilds_nothing(
    kind: str, servers: Places, local: Path, tmp_path: Path
) -> None:
    place = servers.new(kind)
    first = run_pipeline(DECLARED, opened(place, tmp_path / "first"), 2)
    assert (len(first.built), first.reused, first.failed) == (16, [], {})
    wanted = data_files(local)
    store = place()
    found = {info.key: b"".join(store.read(info.key)) for info in store.list() if not info.key.endswith(NAME)}
    assert found.keys() == wanted.keys()
    assert found == wanted

    before = keys_and_versions(place)
    second = run_pipeline(DECLARED, opened(place, tmp_path / "first"), 1)
    other = run_pipeline(DECLARED, opened(place, tmp_path / "other"), 1)
    for outcome in (second, other):
        assert (outcome.built, len(outcome.reused), outcome.failed) == ([], 16, {})
    assert keys_and_versions(place) == before

    in_folder = {(v.name, v.bytes, v.defects) for v in verify_path(local)}
    assert {(v.name, v.bytes, v.defects) for v in verify_store(store)} == in_folder
    assert all(not defects for _, _, defects in in_folder)


def test_a_changed_setting_replaces_what_follows_from_it(servers: Places, tmp_path: Path) -> None:
    place = servers.new("folder")
    store = opened(place, tmp_path / "cache")
    run_pipeline(DECLARED, store, 2)
    changed = sample_declaration(shards={"count": 2}, views=["nanogpt"])
    outcome = run_pipeline(changed, store, 2)
    assert not outcome.failed
    assert "nanogpt_bins" in outcome.reused + outcome.built
    again = run_pipeline(changed, opened(place, tmp_path / "other"), 1)
    assert again.built == []
    local = tmp_path / "local"
    run_pipeline(changed, local, 2)
    there = place()
    for name, data in data_files(local).items():
        assert b"".join(there.read(name)) == data, name
    (split,) = [v for v in verify_store(there) if v.name == "sample_corpus/combined_bins/train"]
    assert split.defects == ()


def damaged(place: StoreAddress) -> dict[str, tuple[str, ...]]:
    return {v.name: v.defects for v in verify_store(place()) if v.defects}


def test_verify_names_what_is_wrong_in_a_bucket(servers: Places, tmp_path: Path) -> None:
    place = servers.new("gcs")
    run_pipeline(DECLARED, opened(place, tmp_path), 2)
    store, key = place(), "sample_corpus/token_bins/train-00001/tokens.bin"
    raw = b"".join(store.read(key))
    store.put(key, raw[:-1] + bytes([raw[-1] ^ 1]))
    ((name, (defect,)),) = damaged(place).items()
    assert name == "sample_corpus/token_bins/train-00001"
    assert defect.startswith("tokens.bin: changed after it was built")
    store.put(key, raw[:-2])
    assert damaged(place)[name][0].startswith(f"tokens.bin: has {len(raw) - 2:,} bytes, but had ")
    store.delete(key)
    assert damaged(place)[name] == ("tokens.bin: missing",)
    store.put(key, raw)
    store.put("sample_corpus/nanogpt_bins/more.bin", b"x")
    assert damaged(place) == {"sample_corpus/nanogpt_bins": ("more.bin: not in the receipt",)}
    store.delete("sample_corpus/nanogpt_bins/more.bin")
    store.delete("sample_corpus/token_bins/val-00000/receipt.json")
    ((name, (defect,)),) = damaged(place).items()
    assert (name, "val-00000 is missing" in defect) == ("sample_corpus/combined_bins/val", True)
    store.put("sample_corpus/combined_bins/test/receipt.json", b"{}")
    assert "test" in damaged(place)
