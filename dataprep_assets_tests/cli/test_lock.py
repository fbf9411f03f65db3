"""`dataprep lock`, `run --locked`, `verify --lock` and `diff` as a user types them, on their own small corpus."""

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
import yaml

from dataprep_assets.cli import main
from dataprep_assets.engine.lock.lock import read_lock
from dataprep_assets.project_template import write_project
from dataprep_assets.stores.connect import parse_place
from dataprep_assets_tests import forked
from dataprep_assets_tests.cli.commands import dataprep, environment
from dataprep_assets_tests.fakes.buckets import new_bucket
from dataprep_assets_tests.fakes.swift_server import KEY_ID, SECRET
from dataprep_assets_tests.faults.edits import flip_byte
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.samples import SAMPLE

pytestmark = pytest.mark.slow

NAME = "tales"


def declare(folder: Path, **changes: object) -> None:
    """Declare a corpus of two files, with one shard per file, and one view."""
    attributes = {
        "dataset": NAME,
        "source": {"kind": "local", "path": "./data"},
        "include": ["*.jsonl"],
        "splits": {"train": ["*"]},
        "tokenizer": {"path": str(SAMPLE / "tokenizer"), "engine": "tokenizers"},
        "document": {"separator": "<|endoftext|>"},
        "shards": {"count": 2},
        "views": ["nanogpt"],
        "workers": 1,
        **changes,
    }
    text = yaml.safe_dump({"type": "dataprep_assets.components.TokenizedCorpus", "attributes": attributes})
    (folder / "defs.yaml").write_text(text)


def write_tales(path: Path, count: int) -> None:
    """Write a source file with this number of documents."""
    sentence = "Once upon a time, number {}, there was a fox who counted {} stars, and slept."
    path.write_text("".join(json.dumps({"text": sentence.format(i, i * 37 % 11)}) + "\n" for i in range(count)))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a project with one dataset, and its artifact folder after a run and a lock."""
    clone = tmp_path_factory.mktemp("project") / "clone"
    write_project(clone)
    folder = find_folder(clone)
    shutil.rmtree(folder.with_name("sample_corpus"))
    (folder / "data").mkdir(parents=True)
    write_tales(folder / "data" / "a.jsonl", 60)
    write_tales(folder / "data" / "b.jsonl", 80)
    declare(folder)
    work = tmp_path_factory.mktemp("work")
    ran = dataprep(work, "run", NAME, project=clone)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    locked = dataprep(work, "lock", NAME, project=clone)
    assert locked.returncode == 0, locked.stderr
    assert locked.stdout == f"Locked {NAME} (9 artifacts, 2 source files): wrote {folder / 'dataset.lock'}\n"
    return clone, work


@pytest.fixture
def place(built: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """Return a copy of the project and of its folder that a test may change."""
    clone = Path(shutil.copytree(built[0], tmp_path / "clone"))
    return clone, Path(shutil.copytree(built[1], tmp_path / "work"))


def find_folder(clone: Path) -> Path:
    return clone / "clone" / "defs" / NAME


def read_receipts(work: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (work / "artifacts").rglob("receipt.json")}


def test_a_locked_run_of_a_built_dataset_does_nothing_and_reports_equality(built: tuple[Path, Path]) -> None:
    clone, work = built
    before = read_receipts(work)
    done = dataprep(work, "run", NAME, "--locked", project=clone)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "everything is up to date" in done.stdout
    assert "9 artifacts match the lock" in done.stdout.splitlines()
    assert read_receipts(work) == before


def test_a_fresh_machine_builds_the_dataset_and_verifies_the_lock(place: tuple[Path, Path]) -> None:
    clone, work = place
    lock = work / "elsewhere.lock"
    shutil.move(find_folder(clone) / "dataset.lock", lock)
    shutil.rmtree(work / "artifacts")
    shutil.rmtree(work / "home")
    done = dataprep(work, "run", NAME, "--lock", str(lock), project=clone)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 artifacts match the lock" in done.stdout.splitlines()
    again = dataprep(work, "lock", NAME, "--output", str(work / "again.lock"), project=clone)
    assert again.returncode == 0
    assert (work / "again.lock").read_bytes() == lock.read_bytes()


def test_a_changed_setting_is_refused_before_a_build(place: tuple[Path, Path]) -> None:
    clone, work = place
    declare(find_folder(clone), bad_records={"max_record_bytes": 1 << 20})
    before = read_receipts(work)
    done = dataprep(work, "run", NAME, "--locked", project=clone)
    assert done.returncode == 1
    assert_names(
        done.stdout, "drift", "token_bins/train-00000", 1, "bad_records.max_record_bytes", "67108864", "1048576"
    )
    assert done.stderr == f"dataprep: {NAME}: 2 artifacts differ from the lock; nothing was built\n"
    assert read_receipts(work) == before
    shutil.rmtree(work / "artifacts")
    fresh = dataprep(work, "run", NAME, "--locked", project=clone)
    assert fresh.returncode == 1
    assert "bad_records.max_record_bytes was 67108864, now 1048576" in fresh.stdout
    assert_names(fresh.stderr, "downstream")
    assert not (work / "artifacts" / NAME / "token_bins").exists(), "what would differ was not made"


def test_a_changed_byte_of_a_source_is_refused_with_its_file(place: tuple[Path, Path]) -> None:
    clone, work = place
    path = find_folder(clone) / "data" / "b.jsonl"
    path.write_bytes(path.read_bytes().replace(b"fox", b"ox!", 1))
    before = read_receipts(work)
    done = dataprep(work, "run", NAME, "--locked", project=clone)
    assert done.returncode == 1
    assert_names(done.stdout, "drift", "snapshot/train-00001", "b.jsonl")
    assert read_receipts(work) == before


def test_a_locked_run_repairs_damage(place: tuple[Path, Path]) -> None:
    clone, work = place
    path = work / "artifacts" / NAME / "token_bins" / "train-00000" / "tokens.bin"
    good = path.read_bytes()
    flip_byte(path)
    done = dataprep(work, "run", NAME, "--locked", project=clone)
    assert done.returncode == 0, done.stdout + done.stderr
    assert path.read_bytes() == good


def test_a_copy_is_verified_with_only_the_lock(place: tuple[Path, Path]) -> None:
    clone, work = place
    lock, copied = find_folder(clone) / "dataset.lock", work / "copy"
    shutil.copytree(work / "artifacts", copied)
    shutil.rmtree(work / "artifacts")
    good = dataprep(work, "verify", "--lock", str(lock), str(copied), project=clone)
    assert good.returncode == 0, good.stdout
    assert good.stdout == f"{NAME}: 9 artifacts in the lock: all match\n"
    flip_byte(copied / NAME / "nanogpt_bins" / "train.bin")
    shutil.rmtree(copied / NAME / "snapshot" / "train-00001")
    shutil.copytree(copied / NAME / "manifest", copied / NAME / "manifest_2")
    (copied / NAME / "loose").mkdir()
    (copied / NAME / "loose" / "tokens.bin").touch()
    bad = dataprep(work, "verify", "--lock", str(lock), str(copied), project=clone)
    assert bad.returncode == 1
    lines = bad.stdout.splitlines()
    assert_names("\n".join(lines), "DIFFERS snapshot/train-00001", "missing")
    assert any(line.startswith("DIFFERS nanogpt_bins: train.bin: ") for line in lines)
    assert_names("\n".join(lines), "DIFFERS manifest_2", "extra", f"{NAME}/manifest")
    assert_names("\n".join(lines), "DIFFERS loose", "extra")
    assert lines[-1] == f"{NAME}: 9 artifacts in the lock: 4 differ"
    some = dataprep(
        work,
        "verify",
        "--lock",
        str(lock),
        str(copied / NAME / "combined_bins"),
        "--select",
        "combined_*",
        project=clone,
    )
    assert some.returncode == 0, some.stdout


def test_two_roots_differ_by_the_added_document(place: tuple[Path, Path]) -> None:
    clone, work = place
    lock = find_folder(clone) / "dataset.lock"
    old = Path(shutil.copytree(work / "artifacts", work / "old"))
    same = dataprep(work, "diff", str(lock), str(old / NAME), project=clone)
    assert same.returncode == 0, same.stdout + same.stderr
    assert re.search(r"^no differences: 2 source files, 140 documents, [\d,]+ tokens$", same.stdout, re.MULTILINE)
    write_tales(find_folder(clone) / "data" / "b.jsonl", 81)
    assert dataprep(work, "run", NAME, project=clone).returncode == 0
    told = dataprep(work, "diff", str(old), str(work / "artifacts"), project=clone)
    assert told.returncode == 1, told.stderr
    assert re.search(r"^  changed  b\.jsonl: \+1 document, \+\d+ tokens$", told.stdout, re.MULTILINE)
    found = dataprep(work, "diff", str(lock), str(work / "artifacts"), "--json", project=clone)
    assert found.returncode == 1
    value = json.loads(found.stdout)
    assert value["same"] is False
    assert value["splits"]["train"]["a"]["documents"] == 140
    assert value["splits"]["train"]["b"]["documents"] == 141
    (file,) = value["files"]
    assert (file["split"], file["file"], file["kind"]) == ("train", "b.jsonl", "changed")
    assert "token_bins/train-00001" in value["artifacts"]["changed"]
    assert "token_bins/train-00000" not in value["artifacts"]["changed"]


def test_an_unusable_lock_is_refused_in_one_line(
    built: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clone, work = built
    lock = find_folder(clone) / "dataset.lock"
    no_lock, newer, other = (tmp_path / name for name in ("no.lock", "newer.lock", "other.lock"))
    no_lock.write_text("no: lock\n")
    newer.write_text(lock.read_text().replace('"dataprep_lock": 2', '"dataprep_lock": 3'))
    other.write_text(lock.read_text().replace(f'"dataset": "{NAME}"', '"dataset": "sagas"'))
    for arguments, words in [
        (["run", NAME, "--lock", str(other)], f"must be a lock of {NAME}"),
        (
            ["lock", NAME, "--output", str(tmp_path / "none" / "x.lock")],
            "none/x.lock: must be a file, and its folder must exist",
        ),
    ]:
        done = dataprep(work, *arguments, project=clone)
        assert done.returncode == 2, (arguments, done.stdout, done.stderr)
        assert words in done.stderr, arguments
        assert len(done.stderr.splitlines()) == 1, done.stderr
    for arguments, code, words in [
        (["run", NAME, NAME, "--lock", str(lock)], 2, "applies to a single dataset"),
        (["run", NAME, "--split", "train", "--locked"], 2, "applies only to whole datasets. Remove --split"),
        (["verify", "--lock", str(no_lock)], 1, "no.lock: not a lock file"),
        (["verify", "--lock", str(newer)], 1, "unsupported schema 3; this version reads 2"),
        (["verify", "--lock", str(lock), "--select", "nothing"], 2, "matches no artifact"),
        (["verify", "--select", "nothing"], 2, "Add --lock"),
        (["diff", str(lock), str(no_lock)], 2, "no.lock: not a lock file"),
        (["diff", str(lock), str(tmp_path / "nowhere")], 2, "no such lock file or folder"),
        (["diff", str(lock), str(tmp_path)], 2, "no finished artifact found"),
    ]:
        assert main(arguments) == code, arguments
        err = capsys.readouterr().err
        assert words in err, arguments
        assert len(err.splitlines()) == 1, err


def test_a_killed_lock_leaves_the_old_or_the_new_file(place: tuple[Path, Path]) -> None:
    clone, work = place
    path = find_folder(clone) / "dataset.lock"
    good = path.read_bytes()
    path.write_bytes(b"the old one")
    variables = environment(work) | {"PYTHONPATH": str(clone)}
    command = ["-m", "dataprep_assets.cli", "lock", NAME]
    started = time.monotonic()
    forked.run(command, env=variables, cwd=clone, check=True)
    whole = time.monotonic() - started
    path.write_bytes(b"the old one")
    for part in (0.7, 0.9, 1.0):
        process = forked.start(command, env=variables, cwd=clone)
        time.sleep(whole * part)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert path.read_bytes() in (b"the old one", good)
    forked.run(command, env=variables, cwd=clone, check=True)
    assert path.read_bytes() == good
    assert read_lock(path).dataset == NAME


def test_a_copy_in_a_bucket_is_verified_and_compared(
    built: tuple[Path, Path],
    moto: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    clone, work = built
    lock = str(find_folder(clone) / "dataset.lock")
    there = f"s3://{new_bucket(moto)}/copies"
    monkeypatch.setenv("R2_DATASET_WRITE_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("R2_DATASET_WRITE_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("DATAPREP_ENDPOINT_URL", moto)
    monkeypatch.setenv("DATAPREP_CACHE", str(tmp_path / "cache"))
    assert main(["sync", str(work / "artifacts"), there]) == 0
    store = parse_place(there, os.environ)()
    store.put("another/thing/receipt.json", b"damaged, and none of our business")
    capsys.readouterr()
    assert main(["verify", "--lock", lock, there]) == 0
    assert main(["diff", lock, there, "--dataset", NAME]) == 0
    assert main(["diff", lock, f"{there}/{NAME}"]) == 0
    store.delete(f"{NAME}/token_bins/train-00001/receipt.json")
    assert main(["verify", "--lock", lock, there]) == 1
    assert main(["diff", lock, there, "--dataset", NAME]) == 1
    out = capsys.readouterr().out
    assert_names(out, "DIFFERS token_bins/train-00001", "missing")
    assert "artifacts only in a: 1\n  token_bins/train-00001" in out
    assert "  removed  b.jsonl: -80 documents" in out
