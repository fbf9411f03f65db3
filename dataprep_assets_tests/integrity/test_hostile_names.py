"""In files from others, no name leads out of its folder or is deceptive, and deep nesting causes no crash."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dataprep_assets.engine.lock.lock import Lock, LockEntry, encode_lock, parse_lock
from dataprep_assets.errors import ConfigError, DataprepError, FormatError, IntegrityError, SourceError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactHandle, LocalArtifacts
from dataprep_assets.integrity.receipt import Content, FileRecord, Receipt, parse_receipt, read_receipt
from dataprep_assets.planning.manifest import MANIFEST, SourceFile, build_manifest, read_manifest, write_manifest
from dataprep_assets.serving.window.release import Release
from dataprep_assets.sources.hub_cache import HubFile, check_file, is_inside
from dataprep_assets.stores.files import explain_invalid_name
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.serving.releases import make_release

HOSTILE = [
    "../evil",
    "a/../../evil",
    "/etc/passwd",
    "",
    ".",
    "a//b",
    "a/",
    "a\nb",
    "\x1b[31mred",
    "a\x85b",
    "tx\u202etp.exe",
    "\u2066x",
    "\udc80",
]
DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    "name", ["a", "a/b.bin", "train/\u00e9 \u4f60.jsonl", "..a", "a..", "a[1:7]", "#0123", ".hidden"]
)
def test_a_valid_name_is_accepted(name: str) -> None:
    assert explain_invalid_name(name) == ""


@pytest.mark.parametrize("part", ["dataset", "name", "partition"])
@pytest.mark.parametrize("name", [*HOSTILE, ".hidden"])
def test_no_artifact_is_outside_of_its_store(name: str, part: str) -> None:
    with raises(ConfigError, repr(name)):
        replace(Artifact(dataset="d", name="a", partition="p"), **{part: name})


def make_receipt_bytes(folder: Path, name: str) -> bytes:
    """Return a consistent receipt, as an attacker who knows the format would write it."""
    record = FileRecord(path=name, bytes=6, sha256="0" * 64)
    receipt = Receipt(dataset="d", artifact="a", partition=None, key="k", inputs={}, files=(record,))
    folder.mkdir(parents=True, exist_ok=True)
    receipt.write(folder)
    return (folder / "receipt.json").read_bytes()


@pytest.mark.parametrize("name", HOSTILE[:-1])  # UTF-8 has no encoding of a lone surrogate
def test_no_receipt_names_a_file_outside_of_its_artifact(tmp_path: Path, name: str) -> None:
    artifact = Artifact(dataset="d", name="a")
    (tmp_path / "store" / "d" / "evil").parent.mkdir(parents=True)
    (tmp_path / "store" / "d" / "evil").write_bytes(b"secret")
    make_receipt_bytes(artifact.directory(tmp_path / "store"), name)
    store = LocalArtifacts(tmp_path / "store")
    with raises(IntegrityError, repr(name)):
        ArtifactHandle.from_store(store, artifact).path(name)
    assert store.find_current(artifact, "k") is None


@pytest.mark.parametrize("prefix", ["../../evil", "a/b", "", "tr\x1bain", "\u202eniart"])
def test_no_release_names_a_folder_outside_of_its_location(tmp_path: Path, prefix: str) -> None:
    release = make_release(tmp_path)
    with raises(FormatError, repr(prefix)):
        replace(release, shards={prefix: release.shards_of("train")})


@pytest.mark.parametrize("name", HOSTILE)
def test_no_manifest_lists_a_file_outside_of_its_source(tmp_path: Path, name: str) -> None:
    entries = build_manifest([SourceFile(relpath="a.jsonl", size_bytes=1)], include=["**"], splits={"train": ["**"]})
    write_manifest(tmp_path, entries, {"train": 1})
    line = json.loads((tmp_path / MANIFEST).read_bytes())
    (tmp_path / MANIFEST).write_text(json.dumps({**line, "relpath": name}) + "\n")
    with raises(FormatError, MANIFEST, 1):
        read_manifest(tmp_path)
    with raises(SourceError, "`include`"):
        build_manifest([SourceFile(relpath=name, size_bytes=1)], include=["**"], splits={"train": ["**"]})


@pytest.mark.parametrize("name", HOSTILE)
def test_locks_and_hub_listings_with_such_names_are_refused(name: str) -> None:
    lock = Lock(dataset="d", artifacts={"NAME": LockEntry(key="1", content=Content("2"), bytes=1)})
    data = encode_lock(lock)
    assert parse_lock(data, "dataset.lock") == lock
    with raises(FormatError, "dataset.lock"):
        parse_lock(data.replace(b'"NAME"', json.dumps(name).encode()), "dataset.lock")
    assert not is_inside(name)
    with raises(SourceError, repr(name)):
        check_file(HubFile(relpath=name, size=1, sha256=None, etag="0" * 40), "listing")


def _manifest_of(data: bytes, folder: Path) -> object:
    (folder / MANIFEST).write_bytes(data)
    return read_manifest(folder)


@pytest.mark.parametrize(
    "parse",
    [
        lambda data, folder: parse_receipt(data, "receipt.json"),
        lambda data, folder: Release.from_bytes(data, "release.json"),
        lambda data, folder: parse_lock(data, "dataset.lock"),
        _manifest_of,
    ],
    ids=["receipt", "release", "lock", "manifest"],
)
def test_deeply_nested_json_is_refused_in_a_sentence(parse: Callable[[bytes, Path], object], tmp_path: Path) -> None:
    with pytest.raises(DataprepError):
        parse(DEEP, tmp_path)
    # The parser accepts this depth, but recursive functions would fail.
    nested = b'{"facts": ' + b"[" * 900 + b"]" * 900 + b"}"
    with pytest.raises(DataprepError):
        parse(nested, tmp_path)


def test_a_receipt_of_an_earlier_version_is_still_read(tmp_path: Path) -> None:
    make_receipt_bytes(tmp_path, "part/a.bin")
    found = read_receipt(tmp_path)
    assert found is not None
    assert found.files[0].path == "part/a.bin"
