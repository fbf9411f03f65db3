"""The `dataprep` command as a person types it: real processes, real exit codes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from dataprep_assets.components.tokenized_corpus import chosen
from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets.errors import ConfigError

pytestmark = pytest.mark.slow


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "DAGSTER_HOME": str(folder / "home"), "DATAPREP_ROOT": str(folder / "artifacts")}


def dataprep(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dataprep_assets.cli", *arguments],
        env=environment(folder),
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("cli")
    done = dataprep(folder, "run", "sample_corpus")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


def test_run_prints_the_table_the_checks_and_where_things_are(ran: tuple[Path, str]) -> None:
    _, out = ran
    for column in ("shards", "documents", "tokens", "tokens/s/core"):
        assert column in out
    assert "checks: 74 of 74 passed" in out
    for name in ("train.bin", "val.bin", "test.bin", "meta.pkl"):
        assert name in out
    assert "make ui" in out


def test_a_second_run_does_nothing(ran: tuple[Path, str]) -> None:
    folder, _ = ran
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file() and "artifacts" in p.parts}
    again = dataprep(folder, "run", "sample_corpus")
    assert again.returncode == 0
    assert "all is up to date" in again.stdout
    after = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file() and "artifacts" in p.parts}
    assert after == before


def test_status_and_verify_agree_that_all_is_well(ran: tuple[Path, str]) -> None:
    folder, _ = ran
    assert dataprep(folder, "status", "sample_corpus").returncode == 0
    verified = dataprep(folder, "verify")
    assert verified.returncode == 0
    assert "all as their receipts say" in verified.stdout


def test_verify_names_a_flipped_byte_and_run_mends_it(ran: tuple[Path, str]) -> None:
    folder, _ = ran
    path = folder / "artifacts" / "sample_corpus" / "token_bins" / "train-00001" / "tokens.bin"
    good = path.read_bytes()
    path.write_bytes(good[:1000] + bytes([good[1000] ^ 1]) + good[1001:])
    verified = dataprep(folder, "verify")
    assert verified.returncode == 1
    assert "DAMAGED sample_corpus/token_bins/train-00001: tokens.bin: sha256" in verified.stdout
    status = dataprep(folder, "status", "sample_corpus")
    assert status.returncode == 1
    assert status.stdout.splitlines() == ["stale: sample_corpus/token_bins/train-00001"]
    assert dataprep(folder, "run", "sample_corpus").returncode == 0
    assert path.read_bytes() == good
    assert dataprep(folder, "verify").returncode == 0


def test_shards_can_be_spread_over_processes(ran: tuple[Path, str], tmp_path: Path) -> None:
    arguments = ("run", "sample_corpus", "--split", "train", "--process-count", "3", "--process-index")
    assert "materialize" in dataprep(tmp_path, *arguments, "0").stderr.lower()  # no manifest yet
    assert dataprep(ran[0], *arguments, "1").returncode == 0
    refused = dataprep(ran[0], *arguments, "3")
    assert refused.returncode == 1
    assert "--process-index 3" in refused.stderr


def test_an_unknown_dataset_is_told_what_there_is(tmp_path: Path) -> None:
    done = dataprep(tmp_path, "run", "nonesuch")
    assert done.returncode == 1
    assert "sample_corpus" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_interrupted_run_says_so_and_the_next_completes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dataprep_assets.cli", "run", "sample_corpus"]
    running = subprocess.Popen(command, env=environment(tmp_path), cwd=PROJECT_ROOT, stdout=-1, stderr=-1, text=True)
    manifest = tmp_path / "artifacts" / "sample_corpus" / "manifest" / "receipt.json"
    limit = time.monotonic() + 120
    while not manifest.exists() and time.monotonic() < limit:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=120)
    assert running.returncode != 0
    assert dataprep(tmp_path, "run", "sample_corpus").returncode == 0
    left = [p for p in (tmp_path / "artifacts").rglob(".staging/*") if p.suffix != ".lock"]
    assert left == []
    receipt = json.loads((tmp_path / "artifacts" / "sample_corpus" / "nanogpt_bins" / "receipt.json").read_bytes())
    assert receipt["artifact"] == "nanogpt_bins"


@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
def test_parts_cover_every_shard_once(count: int) -> None:
    every = [f"train-{i:05d}" for i in range(10)]
    parts: list[Sequence[str]] = [chosen(every, bounds=None, count=count, index=i) for i in range(count)]
    assert [shard for part in parts for shard in part] == every


def test_a_range_of_unknown_shards_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"train-00009\.\.\.train-00001"):
        chosen([f"train-{i:05d}" for i in range(10)], bounds="train-00009...train-00001", count=None, index=None)
