"""The `dataprep` command as a user types it, with real processes and real exit codes."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from dataprep_assets.cli import main, run
from dataprep_assets.engine.artifact.spec import DatasetInput
from dataprep_assets.execution.pool import ENGINES
from dataprep_assets_tests.cli.commands import dataprep, environment
from dataprep_assets_tests.fakes.buckets import new_bucket
from dataprep_assets_tests.fakes.swift_server import KEY_ID, SECRET
from dataprep_assets_tests.messages import assert_names

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("cli")
    done = dataprep(folder, "run", "sample_corpus")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


def test_run_prints_the_table_the_checks_and_the_locations(ran: tuple[Path, str]) -> None:
    _, out = ran
    for column in ("shards", "documents", "tokens", "size"):
        assert column in out
    assert "tokens/s per core" not in out, "the time of a small build is mostly the start of processes"
    assert "checks: 88 of 88 passed" in out
    assert "engine: fastokens" in out
    for name in ("train.bin", "val.bin", "test.bin", "meta.pkl"):
        assert name in out
    assert f"  nanoGPT: data_dir = '{ran[0]}/artifacts/sample_corpus/nanogpt_bins'" in out
    assert_names(out.splitlines()[-1], "make ui", "http://127.0.0.1:3000")


def test_show_ends_like_the_run_and_list_shows_what_ran(
    ran: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = ran
    for name, value in environment(folder).items():
        monkeypatch.setenv(name, value)
    assert main(["show", "sample_corpus"]) == 0
    shown = capsys.readouterr().out
    counted, rest = re.split(r"^built in \d+\.\d s: ", out[out.index("split  ") :], flags=re.MULTILINE)
    assert counted in shown
    assert rest in shown, "places, losses, checks and the lines for trainers"
    assert "* nanogpt_bins" in shown
    assert "3 of 3 shards" in shown
    assert main(["list", "--json", "sample_corpus", "sample_notes"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["dataset"], row["component"], row["state"], row["to_make"]) for row in rows] == [
        ("sample_corpus", "TokenizedCorpus", "up to date", 0),
        ("sample_notes", "PackedCohorts", "never run", None),
    ]


def test_a_second_run_does_nothing(ran: tuple[Path, str]) -> None:
    folder, _ = ran
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file() and "artifacts" in p.parts}
    again = dataprep(folder, "run", "sample_corpus")
    assert again.returncode == 0
    line, _ = again.stdout.splitlines()
    assert line.startswith("sample_corpus: everything is up to date, nothing to do; checks: 88 of 88 passed; lost: ")
    after = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file() and "artifacts" in p.parts}
    assert after == before


def test_status_and_verify_report_an_intact_dataset(ran: tuple[Path, str]) -> None:
    folder, _ = ran
    assert dataprep(folder, "status", "sample_corpus").returncode == 0
    verified = dataprep(folder, "verify")
    assert verified.returncode == 0
    assert "DAMAGED" not in verified.stdout


def test_verify_names_a_flipped_byte_and_run_repairs_it(ran: tuple[Path, str]) -> None:
    folder, _ = ran
    path = folder / "artifacts" / "sample_corpus" / "token_bins" / "train-00001" / "tokens.bin"
    good = path.read_bytes()
    path.write_bytes(good[:1000] + bytes([good[1000] ^ 1]) + good[1001:])
    verified = dataprep(folder, "verify")
    assert verified.returncode == 1
    assert "DAMAGED sample_corpus/token_bins/train-00001: tokens.bin: " in verified.stdout
    assert verified.stdout.splitlines()[-1].startswith("Run `dataprep run sample_corpus`")
    status = dataprep(folder, "status", "sample_corpus")
    assert status.returncode == 1
    heading, _, columns, cause, row, *_ = status.stdout.splitlines()
    assert heading == "sample_corpus: 1 artifact to build", "it comes back as it was, so nothing follows"
    assert columns.split() == ["artifact", "count", "partitions", "source", "tokens", "time"]
    assert cause.startswith("damaged: tokens.bin: changed after it was built")
    assert row.startswith("  token_bins_train")
    assert "  train-00001  " in row
    assert "never timed" not in status.stdout
    stamps = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}
    tried = dataprep(folder, "run", "sample_corpus", "--dry-run")
    assert (tried.returncode, tried.stdout) == (1, status.stdout)
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()} == stamps
    assert dataprep(folder, "run", "sample_corpus").returncode == 0
    assert path.read_bytes() == good
    assert dataprep(folder, "verify").returncode == 0


def test_obsolete_artifacts_are_listed_and_removed_only_with_yes(ran: tuple[Path, str]) -> None:
    folder, _ = ran
    assert "nothing to remove" in dataprep(folder, "prune", "sample_corpus").stdout
    bins = folder / "artifacts" / "sample_corpus" / "token_bins"
    shutil.copytree(bins / "val-00000", bins / "val-00009")
    told = dataprep(folder, "status", "sample_corpus")
    assert told.returncode == 0, "nothing is to be built"
    assert "obsolete: sample_corpus/token_bins/val-00009" in told.stdout
    listed = dataprep(folder, "prune", "sample_corpus")
    assert listed.returncode == 0
    assert "obsolete: sample_corpus/token_bins/val-00009: " in listed.stdout
    assert "Dry run" in listed.stdout
    assert (bins / "val-00009" / "receipt.json").exists()
    removed = dataprep(folder, "prune", "sample_corpus", "--yes")
    assert removed.returncode == 0, removed.stderr
    assert "removed sample_corpus/token_bins/val-00009" in removed.stdout
    assert not (bins / "val-00009").exists()
    assert dataprep(folder, "verify").returncode == 0


def test_shards_can_be_spread_over_processes(ran: tuple[Path, str], tmp_path: Path) -> None:
    arguments = ("run", "sample_corpus", "--split", "train", "--process-count", "3", "--process-index")
    assert dataprep(tmp_path, *arguments, "0").returncode == 0, "with what plans it"
    made = {path.parent.name for path in (tmp_path / "artifacts" / "sample_corpus").glob("*/*/receipt.json")}
    assert made == {"train-00000"}
    assert (tmp_path / "artifacts" / "sample_corpus" / "manifest" / "receipt.json").exists()
    assert dataprep(ran[0], *arguments, "1").returncode == 0
    refused = dataprep(ran[0], *arguments, "3")
    assert refused.returncode == 2
    assert "--process-index 3" in refused.stderr


def test_plan_shows_the_cost_before_a_build_and_writes_nothing(tmp_path: Path) -> None:
    done = dataprep(tmp_path, "plan", "sample_corpus", "--cores", "16", "--bandwidth", "1e6", "--runs-at-a-time", "2")
    assert done.returncode == 0, done.stderr
    assert_names(done.stdout, "sample_corpus", 16, "1.0", "MB/s", 2)
    for word in ("train", "transfer", "tokenizing", "orchestration", "expected", "disk", "requests"):
        assert f"\n{word} " in done.stdout
    for engine in ENGINES:
        assert f"\non {engine} " in done.stdout
    assert "from the benchmark" in done.stdout
    assert list(tmp_path.rglob("receipt.json")) == []


def test_plan_takes_its_rates_from_finished_shards(ran: tuple[Path, str]) -> None:
    done = dataprep(ran[0], "plan", "sample_corpus")
    assert done.returncode == 0, done.stderr
    assert_names(done.stdout, "5 finished shards")
    tokens = sum(
        json.loads(path.read_bytes())["ledger"]["tokens"]
        for path in (ran[0] / "artifacts" / "sample_corpus" / "token_bins").glob("*/receipt.json")
    )
    assert f"about {tokens:,} tokens" in done.stdout


def test_plan_of_a_release_lists_its_npy_shards(tmp_path: Path) -> None:
    done = dataprep(tmp_path, "plan", "sample_release")
    assert done.returncode == 0, done.stderr
    assert "npy shards" in done.stdout


@pytest.mark.parametrize(
    ("dataset", "what"),
    [
        ("sample_notes", "costs can be estimated only for corpora, releases and pretraining blends"),
        ("sample_blend_pretrain", "`blend_plan`"),
    ],
)
def test_plan_refuses_a_dataset_without_a_shard_plan(
    tmp_path: Path, dataset: str, what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATAPREP_ROOT", str(tmp_path))
    assert main(["plan", dataset]) == 2
    assert what in capsys.readouterr().err
    assert main(["plan", "sample_corpus", "--cores", "0"]) == 2
    assert capsys.readouterr().err.startswith("dataprep: Invalid value for '--cores': ")


def test_an_unknown_dataset_lists_the_available_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "nonesuch"]) == 2
    assert "sample_corpus" in capsys.readouterr().err


def test_only_artifacts_downstream_of_a_failed_dataset_are_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made_of: dict[str, list[str]] = {"notes": [], "mixed": ["notes"], "run": ["mixed"], "other": []}
    datasets = [
        SimpleNamespace(
            name=name,
            specs=[SimpleNamespace(inputs=[DatasetInput(dataset=of, name="table") for of in others])],
        )
        for name, others in made_of.items()
    ]
    monkeypatch.setattr(run, "_open_sound", lambda _: datasets)
    monkeypatch.setattr(run, "_run_dataset", lambda dataset, *_, **__: {"notes": 1, "other": 0}[dataset.name])
    assert main(["run", *made_of]) == 1
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "mixed: not built, because notes was not built",
        "run: not built, because mixed was not built",
    ]
    assert said.out.splitlines()[-1].endswith("`dataprep run notes mixed run` again")


def test_preflight_writes_to_a_folder_and_reports_it_ready(tmp_path: Path) -> None:
    done = dataprep(tmp_path, "preflight", str(tmp_path / "store"))
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("  ok ") == 10
    assert done.stdout.splitlines()[-1] == "ready"
    assert [p for p in (tmp_path / "store").rglob("*") if p.is_file() and p.name != "lock"] == []


def test_preflight_of_a_reader_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "store"
    there.mkdir()
    assert main(["preflight", "--read-only", str(there)]) == 1
    assert_names(capsys.readouterr().out, "Check", "bucket", "prefix")
    (there / "release.json").write_bytes(b"{}")
    assert main(["preflight", "--read-only", str(there)]) == 0
    said = capsys.readouterr().out
    assert said.count("  ok ") == 3
    assert said.splitlines()[-1] == "ready"
    assert [path.name for path in there.iterdir()] == ["release.json"]


def test_an_unreachable_store_reports_the_remedy_and_no_secret(moto: str, tmp_path: Path) -> None:
    secrets = {
        "R2_DATASET_READ_ACCESS_KEY_ID": "CANARYKEYID0123456789",
        "R2_DATASET_READ_SECRET_ACCESS_KEY": "canary-secret-value-0123456789",
    }
    pytest.importorskip("dagster_aws")
    done = dataprep(tmp_path, "preflight", "s3://no-such-bucket/x", **secrets, DATAPREP_ENDPOINT_URL=moto)
    assert done.returncode == 1
    assert "FAILED  credentials and list" in done.stdout
    assert_names(done.stdout, "no-such-bucket")
    assert "9 steps" in done.stdout
    for secret in secrets.values():
        assert secret not in done.stdout + done.stderr
    half = dataprep(tmp_path, "preflight", "s3://bucket/x", R2_DATASET_READ_ACCESS_KEY_ID="CANARYKEYID0123456789")
    assert half.returncode == 2
    assert "R2_DATASET_READ_SECRET_ACCESS_KEY is not set" in half.stderr


def test_a_dataset_is_copied_to_a_bucket_and_verified_there(ran: tuple[Path, str], moto: str, tmp_path: Path) -> None:
    keys = {"R2_DATASET_WRITE_ACCESS_KEY_ID": KEY_ID, "R2_DATASET_WRITE_SECRET_ACCESS_KEY": SECRET}
    source = str(ran[0] / "artifacts")
    bucket = new_bucket(moto)
    reached = keys | {"DATAPREP_ENDPOINT_URL": moto, "DATAPREP_CACHE": str(tmp_path / "cache")}
    there = f"s3://{bucket}/copies"
    tried = dataprep(tmp_path, "sync", source, there, "--prefix", "sample_corpus/nanogpt_bins/", "--dry-run", **reached)
    assert tried.returncode == 0, tried.stderr
    assert "6 objects, 6 to copy" in tried.stdout
    assert "copy" in tried.stdout
    assert "train.bin (missing at" in tried.stdout
    done = dataprep(tmp_path, "sync", source, there, "--prefix", "sample_corpus/nanogpt_bins/", **reached)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "DATASET_BINS_PATH=copies"
    assert SECRET not in done.stdout
    again = dataprep(tmp_path, "sync", source, there, "--prefix", "sample_corpus/nanogpt_bins/", **reached)
    assert_names(again.stdout, 6, 0)
    verified = dataprep(tmp_path, "verify", there, **reached)
    assert verified.returncode == 0, verified.stdout
    assert "1 artifact," in verified.stdout
    assert dataprep(tmp_path, "preflight", there, **reached).returncode == 0


def test_a_missing_storage_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATAPREP_STORAGE", "gcs")
    assert main(["status", "sample_corpus"]) == 2
    assert "needs DATAPREP_BUCKET" in capsys.readouterr().err
