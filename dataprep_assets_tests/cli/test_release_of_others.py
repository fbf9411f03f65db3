"""Shards that others published without a manifest: adopted, trained on, copied and verified outside of any project.

`adopt` runs in a folder that is not a project; the shards have the layout of templar's scripts. A release of another
dataset is never overwritten.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]

from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets.formats import npy_shards
from dataprep_assets.pipelines.release.published import send_release
from dataprep_assets.serving import ShardWindow
from dataprep_assets.serving.window.release import MANIFEST, ReleaseLocation, read_release
from dataprep_assets.stores.connect import S3Address
from dataprep_assets.stores.local import LocalStore
from dataprep_assets_tests import forked
from dataprep_assets_tests.cli.commands import dataprep
from dataprep_assets_tests.fakes.buckets import new_bucket
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.release.release_project import release_attributes
from dataprep_assets_tests.readers.pytorch import evaluated, managed_turns
from dataprep_assets_tests.samples import SMALL
from dataprep_assets_tests.serving.releases import LENGTH, make_release, publish, tokens_of

pytestmark = pytest.mark.slow
KEYS = {"R2_DATASET_READ_ACCESS_KEY_ID": "key", "R2_DATASET_READ_SECRET_ACCESS_KEY": "secret"}


def run_command(folder: Path, *line: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a command in a folder that is not a project, with its own home."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DATAPREP_", "R2_", "AWS_", "DAGSTER_"))}
    home = {"HOME": str(folder / "home"), "PYTHONPATH": str(PROJECT_ROOT)}
    return forked.run(["-m", "dataprep_assets.cli", *line], env=kept | home | variables, cwd=folder)


def write_shards(folder: Path, samples: tuple[int, ...] = (8, 6, 8), **options: Any) -> Path:
    """Write a folder of shards without a manifest."""
    make_release(folder, samples, **options)
    return folder


def fill_buckets(server: str, *folders: Path) -> list[dict[str, str]]:
    """Return a bucket per folder, with its files below `remote/tokenized/`, and the environment of the readers."""
    found = []
    for folder in folders:
        bucket = new_bucket(server)
        place = S3Address(
            bucket=bucket,
            prefix="remote/tokenized",
            endpoint_url=server,
            region="us-east-1",
            access_key_id="key",
            secret_access_key="secret",
        )()
        for path in sorted(folder.rglob("*")):
            if path.is_file() and ".uploads" not in path.parts:
                place.put(path.relative_to(folder).as_posix(), path.read_bytes())
        found.append({**KEYS, "R2_DATASET_BUCKET_NAME": bucket, "DATAPREP_ENDPOINT_URL": server})
    return found


def test_shards_in_a_third_party_bucket_are_adopted_into_a_folder_and_trained_on(
    tmp_path: Path, moto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = write_shards(tmp_path / "theirs", val=1)
    (environment,) = fill_buckets(moto, shards)
    url = f"s3://{environment['R2_DATASET_BUCKET_NAME']}/remote/tokenized"
    line = ["release", "adopt", url, "--to", "mine", "--name", "swarm", "--tokenizer", "gemma"]
    done = run_command(tmp_path / "here", *line, **environment)
    assert done.returncode == 0, done.stderr
    assert_names(done.stdout, "train", 3, 22, 16, "uint32")
    assert not (tmp_path / "here" / ".dataprep").exists()
    kept = tmp_path / "here" / "mine" / MANIFEST
    again = run_command(tmp_path / "here", *line, **environment)
    assert again.returncode == 0, again.stderr
    assert "reading" not in again.stdout  # the digests of the earlier adoption are reused

    release = read_release(ReleaseLocation(LocalStore(kept.parent)))
    wanted = make_release(tmp_path / "built", (8, 6, 8), val=1)
    assert (release.dataset, release.tokenizer, release.location) == ("swarm", "gemma", url)
    assert (release.sequence_length, release.dtype, release.shards) == (LENGTH, "uint32", wanted.shards)

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with ShardWindow(kept, tmp_path / "cache", steps_per_shard=2, keep=2) as window:
        for step in range(8):
            index = step // 2 % 3
            assert np.array_equal(window.swap(step).tokens, tokens_of(index, 6 if index == 1 else 8))
        state = window.state(3)
    turns = managed_turns(kept, tmp_path / "of the manager", LENGTH, 1, 2, environment)
    assert [turn["shard"] for turn in turns] == [1, 2, 0]
    # A trainer in which only the import was changed finds the manifest in the local folder of the shards.
    at_home = {**environment, "DATASET_BINS_PATH": "mine"}
    turns = managed_turns(None, None, LENGTH, 0, 1, at_home, tmp_path / "here")
    assert [turn["shard"] for turn in turns] == [0, 1]

    # A copy at the user's own location is the same release, and a run continues with it.
    copied = run_command(tmp_path / "here", "sync", str(kept.parent), "own", **environment)
    assert copied.returncode == 0, copied.stderr
    with ShardWindow(tmp_path / "here" / "own", tmp_path / "other cache", steps_per_shard=2) as window:
        assert window.restore(state) == 3
    for place in ("mine", "own", url, "."):
        verified = run_command(tmp_path / "here", "verify", place, **environment)
        if place == url:
            assert verified.returncode == 1
            assert_names(verified.stderr, "receipt.json", "release.json")
        else:
            assert verified.returncode == 0, verified.stdout + verified.stderr
            assert verified.stdout.count("all match release.json") == (2 if place == "." else 1)


def test_listed_buckets_are_read_in_turn_and_a_missing_one_is_skipped(tmp_path: Path, moto: str) -> None:
    shards = write_shards(tmp_path / "theirs")
    assert run_command(tmp_path / "here", "release", "adopt", str(shards)).returncode == 0
    assert (shards / MANIFEST).is_file()
    first, second = fill_buckets(moto, shards, shards)
    listed = [
        {"account_id": "abc", "name": one, "credentials": {"read": {"access_key_id": "k", "secret_access_key": "s"}}}
        for one in (first["R2_DATASET_BUCKET_NAME"], "a-bucket-that-is-gone", second["R2_DATASET_BUCKET_NAME"])
    ]
    environment = {
        "DATAPREP_ENDPOINT_URL": moto,
        "DATASET_BINS_PATH": "remote/tokenized/",
        "R2_DATASET_BUCKET_LIST": json.dumps(listed),
    }
    turns = managed_turns(None, None, LENGTH, 0, 3, environment, tmp_path)
    assert [turn["shard"] for turn in turns] == [0, 1, 2, 0]
    assert np.array_equal(turns[1]["samples"].reshape(-1), tokens_of(1, 6).astype(np.int64))
    assert (tmp_path / "remote" / "tokenized" / "train_000000.npy").is_file()


def test_an_invalid_list_of_buckets_is_refused_without_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataprep_assets.errors import ConfigError
    from dataprep_assets.serving.window.templar import ShardedDatasetManager

    monkeypatch.setenv("DATASET_BINS_PATH", "nowhere/tokenized/")
    wrong = [{"account_id": "a", "name": "b", "credentials": {"read": {"access_key_id": "KEY-ID"}}}]
    for value in (json.dumps(wrong), "[", '{"a": 1}', "[1]"):
        monkeypatch.setenv("R2_DATASET_BUCKET_LIST", value)
        with raises(ConfigError, "R2_DATASET_BUCKET_LIST", "JSON") as raised:
            ShardedDatasetManager(LENGTH, 0, 1)
        assert "KEY-ID" not in str(raised.value)


def test_the_evaluators_dataset_reads_a_folder_with_any_prefix(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "theirs", val=1)
    for prefix, folder, tokens in (("train", shards, tokens_of(0, 8)), ("val", shards / "val", tokens_of(100, 4))):
        found = evaluated(folder, prefix, 0, LENGTH)
        assert np.array_equal(found["samples"].reshape(-1), tokens.astype(np.int64))
        assert len(set(found["ids"])) == len(found["samples"])
    assert "sequences of 12" in evaluated(shards, "train", 0, 12)["refused"]
    ids = shards / "sample_ids_000000.bin"
    ids.write_bytes(ids.read_bytes()[8:] + ids.read_bytes()[:8])
    assert_names(evaluated(shards, "train", 0, LENGTH)["refused"], "sequence", "shard", "ids")
    assert "the file does not exist" in evaluated(shards, "train", 7, LENGTH)["refused"]


def truncate_tokens(folder: Path) -> None:
    path = folder / "train_000002.npy"
    tokens = tokens_of(2, 8)[:-5]
    path.write_bytes(npy_shards.build_header(len(tokens), "uint32") + tokens.tobytes())


def save_ids(folder: Path) -> None:
    path = folder / "sample_ids_000000.bin"
    with path.open("r+b") as file:
        ids = np.fromfile(file, "<u8")
        file.seek(0)
        np.save(file, ids)


def change_ids(folder: Path) -> None:
    (folder / "sample_ids_000000.bin").write_bytes((folder / "sample_ids_000002.bin").read_bytes())


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (
            lambda folder: (folder / "train_000001.npy").unlink(),
            "train_000001.npy: missing. Use --shards 1 to adopt only the shards before it",
        ),
        (truncate_tokens, "of ids, so readers would reject the shard. Use --shards 2 to adopt"),
        (save_ids, "has a .npy header, which readers would read as 16 ids"),
        (change_ids, "sample_ids_000000.bin: the id of sample 0 does not match its tokens (2 defects)"),
        (
            lambda folder: (folder / "train_000000.npy").write_bytes(b"\x93NUMPY"),
            "train_000000.npy: must have .npy version",
        ),
        (
            lambda folder: [path.unlink() for path in folder.glob("*")],
            "no shards found. A release has train_000000.npy",
        ),
    ],
)
def test_an_invalid_release_is_not_adopted(tmp_path: Path, damage: Any, told: str) -> None:
    shards = write_shards(tmp_path / "theirs")
    damage(shards)
    done = run_command(tmp_path / "here", "release", "adopt", str(shards))
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert told in line
    assert not (shards / MANIFEST).exists()
    if "--shards 2" in told:
        assert run_command(tmp_path / "here", "release", "adopt", str(shards), "--shards", "2").returncode == 0
        assert len(read_release(ReleaseLocation(LocalStore(shards))).shards_of("train")) == 2


def test_an_existing_manifest_is_not_replaced_by_a_different_one(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "theirs")
    assert run_command(tmp_path / "here", "release", "adopt", str(shards), "--name", "a").returncode == 0
    before = (shards / MANIFEST).read_bytes()
    done = run_command(tmp_path / "here", "release", "adopt", str(shards), "--name", "b")
    assert done.returncode == 1
    assert_names(done.stderr, "manifest")
    assert (shards / MANIFEST).read_bytes() == before


def test_a_server_manifest_cannot_redirect_a_trainer(tmp_path: Path, moto: str) -> None:
    """Only a folder on this machine may have a manifest whose files are at another location."""
    shards = write_shards(tmp_path / "theirs")
    assert run_command(tmp_path / "here", "release", "adopt", str(shards), "--to", "kept").returncode == 0
    (environment,) = fill_buckets(moto, tmp_path / "here" / "kept")
    url = f"s3://{environment['R2_DATASET_BUCKET_NAME']}/remote/tokenized"
    done = run_command(tmp_path / "here", "verify", url, **environment)
    assert done.returncode == 1
    assert_names(done.stdout, "manifest", "local")


def test_verify_distinguishes_a_release_its_copy_and_an_unrelated_folder(tmp_path: Path) -> None:
    publish(
        make_release(tmp_path / "built", val=1), tmp_path / "built", ReleaseLocation(LocalStore(tmp_path / "place"))
    )
    assert run_command(tmp_path / "here", "sync", str(tmp_path / "place"), "copy").returncode == 0
    for place in (str(tmp_path / "place"), "copy"):
        done = run_command(tmp_path / "here", "verify", place)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "8 files" in done.stdout
        assert "all match release.json" in done.stdout
    path = tmp_path / "here" / "copy" / "train_000001.npy"
    data = path.read_bytes()
    for damaged, told in (
        (data[:-4], "bytes, but the release lists"),
        (data[:-1] + b"\xff", "sha256"),
        (None, "missing"),
    ):
        path.write_bytes(damaged) if damaged is not None else path.unlink()
        done = run_command(tmp_path / "here", "verify", "copy")
        assert done.returncode == 1
        (line, *_) = [line for line in done.stdout.splitlines() if line.startswith("DAMAGED")]
        assert "train_000001.npy" in line
        assert told in line
        assert "1 damaged" in done.stdout
    (tmp_path / "here" / "copy" / MANIFEST).write_text("{}")
    assert "not a release manifest" in run_command(tmp_path / "here", "verify", "copy").stdout
    (tmp_path / "here" / "random").mkdir()
    (tmp_path / "here" / "random" / "a.txt").write_text("hello")
    done = run_command(tmp_path / "here", "verify", "random")
    assert (done.returncode, done.stdout) == (1, "")
    assert_names(done.stderr, "random", "receipt.json", "release.json")


def test_another_datasets_release_is_not_overwritten(tmp_path: Path) -> None:
    from dataclasses import replace

    from dataprep_assets.errors import IntegrityError

    place = publish(make_release(tmp_path / "a"), tmp_path / "a", ReleaseLocation(LocalStore(tmp_path / "place")))
    before = {path.name: path.read_bytes() for path in (tmp_path / "place").iterdir() if path.is_file()}
    other = replace(make_release(tmp_path / "b", (4, 4)), dataset="another")
    with raises(IntegrityError, "release", "trainers"):
        send_release(place, other, lambda file: tmp_path / "b" / file.key)
    assert {path.name: path.read_bytes() for path in (tmp_path / "place").iterdir() if path.is_file()} == before


def test_a_run_does_not_overwrite_another_datasets_release(tmp_path: Path) -> None:
    project = tmp_path / "theirs"
    assert dataprep(tmp_path, "init", str(project)).returncode == 0
    for name in ("first", "second"):
        folder = project / "theirs" / "defs" / "team" / name
        folder.mkdir(parents=True)
        source = {"kind": "local", "path": str(SMALL)}
        attributes = {**release_attributes(str(tmp_path / "public")), "dataset": name, "source": source}
        declared = {"type": "dataprep_assets.components.ShardRelease", "attributes": attributes}
        (folder / "defs.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(declared))))
    done = dataprep(project, "run", "first", project=project)
    assert done.returncode == 0, done.stderr
    before = {path.name: path.read_bytes() for path in (tmp_path / "public").iterdir() if path.is_file()}
    done = dataprep(project, "run", "second", project=project)
    assert done.returncode == 1
    assert_names(done.stderr, "'first'")
    assert "Traceback" not in done.stderr
    assert {path.name: path.read_bytes() for path in (tmp_path / "public").iterdir() if path.is_file()} == before
