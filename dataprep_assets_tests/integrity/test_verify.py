"""`verify_path` finds each fault planted in a finished dataset, without a network, and names its location."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.integrity.receipt import NAME
from dataprep_assets.integrity.verify import verify_path
from dataprep_assets_tests.pipelines.corpus.pipeline import run_pipeline, sample_declaration


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("verify")
    run_pipeline(sample_declaration(), root, 2)
    return root


@pytest.fixture
def root(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "moved"))


def find_defects(path: Path) -> dict[str, tuple[str, ...]]:
    return {found.name: found.defects for found in verify_path(path) if found.defects}


def test_a_finished_dataset_has_no_defect_at_any_location(root: Path) -> None:
    found = list(verify_path(root))
    assert [f.defects for f in found] == [()] * 19
    assert {f.name.split("/")[1] for f in found} == {
        "manifest",
        "snapshot",
        "engine_certificate",
        "token_bins",
        "combined_bins",
        "nanogpt_bins",
        "megatron_bins",
        "datatrove_bins",
        "olmo_bins",
    }


def test_a_flipped_byte_in_any_data_file_is_found_in_its_artifact(root: Path) -> None:
    files = sorted(
        p for p in (root / "sample_corpus").rglob("*") if p.is_file() and p.name != NAME and p.suffix != ".lock"
    )
    for path in files:
        raw = path.read_bytes()
        assert raw, path
        stat = path.stat()
        path.unlink()  # write the damaged copy to a new inode, because other files may be hard links to the old inode
        path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        ((name, (defect,)),) = find_defects(root).items()
        assert path.relative_to(root).as_posix().startswith(name)
        assert "sha256" in defect
        path.write_bytes(raw)
    assert find_defects(root) == {}


def edit_receipt(directory: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    value = json.loads((directory / NAME).read_bytes())
    change(value)
    (directory / NAME).write_text(json.dumps(value))


FAULTS: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "a cut file": ("token_bins/train-00001", lambda d: os.truncate(d / "tokens.bin", 10), "tokens.bin: has 10 bytes"),
    "a missing file": ("combined_bins/train", lambda d: (d / "meta.pkl").unlink(), "meta.pkl: missing"),
    "an extra file": ("nanogpt_bins", lambda d: (d / "train2.bin").touch(), "train2.bin: not in the receipt"),
    "a ledger that does not balance": (
        "token_bins/val-00000",
        lambda d: edit_receipt(d, lambda r: r["ledger"].update(documents=1)),
        "changed",
    ),
    "an altered fact": (
        "combined_bins/val",
        lambda d: edit_receipt(d, lambda r: r["facts"].update(dtype="uint32")),
        "changed",
    ),
    "an altered digest": (
        "manifest",
        lambda d: edit_receipt(d, lambda r: r["files"][0].update(sha256="0" * 64)),
        "changed",
    ),
    "an empty receipt": ("engine_certificate", lambda d: (d / NAME).write_bytes(b""), "not a receipt"),
}


@pytest.mark.parametrize(("where", "plant", "message"), FAULTS.values(), ids=FAULTS)
def test_a_planted_fault_is_found_at_its_location(
    root: Path, where: str, plant: Callable[[Path], Any], message: str
) -> None:
    directory = root / "sample_corpus" / where
    for path in directory.iterdir():  # replace hard links with copies, so that only this artifact has the fault
        if path.is_file():
            raw = path.read_bytes()
            path.unlink()
            path.write_bytes(raw)
    plant(directory)
    ((name, (defect,)),) = find_defects(root).items()
    assert name in (f"sample_corpus/{where}", directory.name)
    assert message in defect


def test_verification_by_size_reads_no_bytes_and_finds_wrong_sizes(root: Path) -> None:
    path = root / "sample_corpus/token_bins/train-00000/tokens.bin"
    path.write_bytes(bytes(path.stat().st_size))
    assert not [f for f in verify_path(root, "size") if f.defects]
    path.write_bytes(path.read_bytes()[:-2])
    assert [f.name for f in verify_path(root, "size") if f.defects] == ["sample_corpus/token_bins/train-00000"]


def test_staging_of_a_running_build_is_not_an_artifact(root: Path) -> None:
    shutil.copytree(root / "sample_corpus/manifest", root / "sample_corpus/.staging/manifest-0123456789abcdef")
    shutil.copytree(root / "sample_corpus/manifest", root / "sample_corpus/.aside-manifest")
    assert len(list(verify_path(root))) == 19


def test_a_lost_shard_is_found_by_its_downstream_artifacts(root: Path) -> None:
    shutil.rmtree(root / "sample_corpus" / "token_bins" / "val-00000")
    found = find_defects(root)
    assert found == {
        "sample_corpus/combined_bins/val": ("its input token_bins/val-00000 is missing. Rebuild token_bins/val-00000",)
    }


def test_a_dataset_published_without_its_shards_is_complete(root: Path) -> None:
    for name in ("token_bins", "snapshot"):
        shutil.rmtree(root / "sample_corpus" / name)
    assert find_defects(root) == {}
