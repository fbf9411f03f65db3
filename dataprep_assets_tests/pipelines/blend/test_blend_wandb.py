"""The tables and the configuration of a blend are logged to W&B, with the real wandb and without a network."""

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dataprep_assets.pipelines.blend.declaration import WandbDeclaration
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.blend.dagster_blend import Blend, declare_tasks, open_blend, read_rows
from dataprep_assets_tests.project import failure_of

OFFLINE = WandbDeclaration(project="blends", entity="team", mode="offline")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Blend]:
    """Return a finished blend without W&B settings, built in a process that cannot import wandb."""
    home = tmp_path_factory.mktemp("rl")
    with open_blend(declare_tasks(home / "sources", workers=1), home / "artifacts") as made:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "wandb", None)
            outcomes = made.run_all()
        assert all(outcome.success for outcome in outcomes), failure_of(outcomes[-1])
        yield made


def enable_wandb(made: Blend, declared: WandbDeclaration = OFFLINE) -> Blend:
    """Return the blend with logging, which happens at materialization."""
    return Blend(made.declaration.model_copy(update={"wandb": declared}), made.root, made.instance)


def materialized(made: Blend) -> Any:
    job = made.definitions.resolve_implicit_global_asset_job_def()
    keys = [made.key("blend")]
    return job.execute_in_process(asset_selection=keys, instance=made.instance, raise_on_error=False)


def read_records(path: Path) -> Iterator[Any]:
    """Return the records of wandb's transaction log, which has LevelDB's log format with a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, kept = path.read_bytes(), 7, b""
    while at < len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        kept += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # 1 is a whole record, and 4 is the last part of a record
            record = Record()
            record.ParseFromString(kept)
            yield record
            kept = b""


def test_without_a_declaration_nothing_is_logged_and_wandb_is_not_imported(finished: Blend) -> None:
    assert "wandb" not in finished.metadata("blend")


def test_the_three_tables_and_the_configuration_are_logged(
    finished: Blend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="the extra `wandb` is not installed")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    made, receipt = enable_wandb(finished), finished.run_directory / "receipt.json"
    before = receipt.read_bytes()
    outcome = materialized(made)
    assert outcome.success, failure_of(outcome)
    assert receipt.read_bytes() == before  # the logging location does not affect the run
    (log,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert made.metadata("blend")["wandb"] == str(log.parent / "files")
    shown = {
        "plan_table": read_rows(made.metadata("blend_plan")["plan_table"]),
        **{name: read_rows(made.metadata("blend")[name]) for name in ("progress_table", "stage_table")},
    }
    assert {p.name.split("_table_")[0] for p in (log.parent / "files" / "media" / "table" / "rl").iterdir()} == {
        "plan",
        "progress",
        "stage",
    }
    for name, expected in shown.items():
        (path,) = (log.parent / "files" / "media" / "table" / "rl").glob(f"{name}_*.table.json")
        table = json.loads(path.read_bytes())
        assert [dict(zip(table["columns"], row, strict=True)) for row in table["data"]] == expected
    run = next(record.run for record in read_records(log) if record.HasField("run"))
    hashed = made.plan.run_hash
    assert (run.project, run.entity, run.display_name, run.run_id) == ("blends", "team", hashed, f"small_rl-{hashed}")
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert {name: config[name] for name in ("run_hash", "stage")} == {"run_hash": hashed, "stage": "rl"}
    assert not (log.parent / "files" / "requirements.txt").exists()


def test_a_missing_extra_is_named(finished: Blend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    outcome = materialized(enable_wandb(finished))
    assert not outcome.success
    assert "pip install 'dataprep-assets[wandb]'" in failure_of(outcome)


def test_without_a_key_the_blend_is_kept_and_the_remedy_is_shown(
    finished: Blend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="the extra `wandb` is not installed")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    outcome = materialized(enable_wandb(finished, WandbDeclaration(project="blends", mode="online")))
    assert not outcome.success
    assert "its tables were not logged" in failure_of(outcome)
    assert finished.stale() == []


def test_sensitive_data_is_never_logged(tmp_path: Path) -> None:
    with raises(ValidationError, "`wandb`", "`sensitive: true`"):
        declare_tasks(tmp_path / "sources", sensitive=True, source_key={"env": "SOME_KEY"}, wandb={"project": "blends"})
