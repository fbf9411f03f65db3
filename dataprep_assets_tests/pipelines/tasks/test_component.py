"""The YAML of a migration: valid declarations, messages about mistakes, and a task that a user adds without Python."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from dataprep_assets.cli.support.project import find_dataset_folder
from dataprep_assets.cli.support.project import use_dataset as dataset_named
from dataprep_assets.code_location import bind_resources
from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets.engine.artifact.dataset import validate_declaration
from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.orchestration.component import build_dataset_definitions
from dataprep_assets.pipelines.tasks.checks import CHECKS, ROWS
from dataprep_assets.pipelines.tasks.component import TaskMigration
from dataprep_assets.pipelines.tasks.declaration import TASK_FOLDER, TaskMigrationDeclaration
from dataprep_assets.pipelines.tasks.routes import find_route, format_task_line, list_partitions
from dataprep_assets.project_template import TEMPLATE
from dataprep_assets_tests import forked
from dataprep_assets_tests.dg_command import DG
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.tasks.migrations import evaluations, failed, migration
from dataprep_assets_tests.pipelines.tasks.trees import COUNTS, edit, project, put
from dataprep_assets_tests.tools.sample.make_sample_tasks import LAYOUT, jsonl


def attributes(**changes: Any) -> dict[str, Any]:
    return {"dataset": "tasks", "old_root": "old", "new_root": "new", "tasks": {"Copa": {}}, **changes}


@pytest.mark.parametrize(
    ("change", "key", "told"),
    [
        ({"tasks": {}}, "tasks", "must not be empty"),
        ({"tasks": {"Copa": {"version": "two words"}}}, "tasks.Copa.version", "two words"),
        ({"tasks": {"Copa": {"mode": "hardlink"}}}, "tasks.Copa.mode", "one of copy, symlink"),
        ({"tasks": {"Copa": {"inherit": ["train"]}}}, "tasks.Copa.inherit.0", "one of validation, test"),
        (
            {"tasks": {"Copa": {"versions_in": "../elsewhere"}}},
            "tasks.Copa.versions_in",
            "a relative path below the task's folder",
        ),
        ({"tasks": {"Copa": {"versoin": "latest"}}}, "tasks.Copa.versoin", "unknown key; "),
        ({"tasks": {"copa": {}}}, "tasks.copa", "unknown contract 'copa'. Available: ArcC_Cloze, ArcC_MC, BOOLQ"),
        ({"layout": "/absolute"}, "layout", "must be a relative path below the projects' roots"),
        (
            {"contracts": {"New": {"like": "Cope"}}},
            "contracts.New: like",
            "Available: ArcC_Cloze, ArcC_MC, BOOLQ, CB, Copa",
        ),
        ({"contracts": {"New": {"files": {}}}}, "contracts.New: keys", "Field required"),
        ({"contracts": {"New": {"like": "Copa", "id": "key"}}}, "contracts.New", "'key'. Available"),
        (
            {"contracts": {"New": {"like": "Copa", "keys": {"label": "number"}}}},
            "contracts.New: keys.label.type",
            "'string', 'integer', 'boolean', 'strings' or 'object'",
        ),
        ({"contracts": {"New": {"like": "Copa", "folder": "Old"}}}, "contracts.New.folder", "must be 'New'"),
        ({"old_root": None}, "old_root", "must be a path"),
        ({"sensitive": "maybe"}, "sensitive", "true or false"),
        ({"verify": "never"}, "verify", "one of full, size"),
        ({"dataset": "has space"}, "dataset", "has space"),
    ],
)
def test_a_wrong_declaration_names_file_key_value_and_what_is_allowed(
    change: dict[str, object], key: str, told: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as raised:
        validate_declaration(TaskMigrationDeclaration, attributes(**change), tmp_path / "defs.yaml")
    message = str(raised.value)
    assert message.startswith(f"{tmp_path / 'defs.yaml'}: ")
    assert f"{key}: " in message
    assert told in message


def test_a_wrong_version_is_reported_at_migration_with_the_available_ones(tmp_path: Path) -> None:
    project(tmp_path, ["Copa"])
    made = validate_declaration(
        TaskMigrationDeclaration, attributes(tasks={"Copa": {"version": "version_2"}}), tmp_path / "d.yaml"
    )
    with raises(ConfigError, "tasks.Copa.version", "version_2", "version_1, version_9"):
        find_route(made, "Copa")


# --- shipped tasks


def shipped(name: str) -> TaskMigrationDeclaration:
    path = find_dataset_folder(name) / "defs.yaml"
    return validate_declaration(TaskMigrationDeclaration, yaml.safe_load(path.read_text())["attributes"], path)


def test_the_shipped_migrations_load_as_assets_with_their_checks() -> None:
    for dataset in ("mezo_tasks", "sample_tasks"):
        graph = bind_resources(build_dataset_definitions(dataset_named(dataset)), PROJECT_ROOT).resolve_asset_graph()
        keys = {k.path[-1]: k for k in graph.get_all_asset_keys() if k.path[0] == dataset}
        assert set(keys) == {TASK_FOLDER, "data_card"}
        key = keys[TASK_FOLDER]
        assert graph.get(key).group_name == dataset
        assert graph.get(key).description
        assert {c.name for c in graph.asset_check_keys if c.asset_key == key} == {proof.name for proof in CHECKS}


def test_the_mezo_tasks_are_the_six_of_the_guide_and_load_without_the_projects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    mezo = shipped("mezo_tasks")
    assert list_partitions(mezo) == ["Copa", "BOOLQ", "CB", "RTE", "ArcC_Cloze", "ArcC_MC"]
    cloned_project = tmp_path / "LLM-inference/jikai-project/Synthetic_Data_for_ZO"
    for task in mezo.tasks:
        assert (
            format_task_line(find_route(mezo, task).target)
            == f"TASK={cloned_project}/Data/rejection_sampling/0_data/{task}"
        )
    store = LocalArtifacts(tmp_path / "artifacts")
    assert len(list(find_stale(TaskMigration(mezo).specs, store))) == 7, "six tasks and the card"
    assert len(TaskMigration(mezo).summary(store)) == 7


def test_the_sample_has_every_version_in_its_order() -> None:
    assert list_partitions(shipped("sample_tasks")) == [
        "Copa.version_1",
        "Copa.version_9-2",
        "Copa.version_10-1",
        "ArcC_Cloze",
    ]


# --- a task without Python code

SENTIMENT = """
dataset: tasks
old_root: old
new_root: new
original: original
tasks:
  Sentiment: {version: latest}
  CopaEasy: {mode: symlink}
contracts:
  CopaEasy: {like: Copa, files: {train: {rows: 12}, validation: {rows: 6}, test: {rows: 5}}}
  Sentiment:
    files:
      train: {name: sentiment_train.jsonl, rows: 4}
      validation: {name: sentiment_validation.jsonl}
    keys: {sentence: string, tone: {type: string, one_of: [plain, warm]}, idx: integer, label: integer}
    id: idx
    label: label
    labels: {train: [0, 1], validation: [0, 1]}
    text: [sentence]
"""


def sentences(first: int, count: int, opening: str = "") -> list[dict[str, Any]]:
    return [
        {"sentence": f"{opening}sentence number {first + i}", "tone": "plain", "idx": i, "label": i % 2}
        for i in range(count)
    ]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(jsonl(rows))


def old_project(home: Path) -> None:
    """Write the folders of the two tasks."""
    project(home, ["Copa"])
    for root in (home / "old" / LAYOUT, home / "original"):
        (root / "Copa").rename(root / "CopaEasy")
        write(root / "Sentiment" / "sentiment_train.jsonl", sentences(0, 4))
        write(root / "Sentiment" / "sentiment_validation.jsonl", sentences(50, 2))
    for version in ("version_2", "version_10", "version_9-9"):
        folder = home / "old" / LAYOUT / "Sentiment" / "mezo_gpt" / version
        write(folder / "sentiment_train.jsonl", sentences(0, 4, f"{version}: "))


def test_a_task_added_only_by_yaml_gets_its_migration_and_its_checks(tmp_path: Path) -> None:
    old_project(tmp_path)
    written = yaml.safe_load(SENTIMENT)
    with migration(tmp_path, written.pop("tasks"), **written) as made:
        outcome = made.run()
        assert outcome.success
        found = evaluations(outcome)
        assert failed(found) == set()
        assert made.metadata("Sentiment")["version"] == "version_10"
        first = json.loads((made.new / "Sentiment" / "sentiment_train.jsonl").read_text().splitlines()[0])
        assert first["sentence"] == "version_10: sentence number 0"
        assert (made.new / "CopaEasy" / "copa_train.jsonl").is_symlink()
        for change in (put(1, tone="loud"), put(2, label=3)):
            edit(made.new / "Sentiment" / "sentiment_train.jsonl", change)
            assert ROWS in failed(made.check())


# --- the commands in a user's project


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Return a function that runs a program of the environment in a project folder and imports that folder's code."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "DAGSTER_HOME": str(folder / "home"),
        "DAGSTER_DISABLE_TELEMETRY": "yes",
        "DATAPREP_ROOT": str(folder / "artifacts"),
        "VIRTUAL_ENV": str(Path(sys.executable).parent.parent),
        "COLUMNS": "200",
    }
    program = ["-c", DG] if arguments[0] == "dg" else ["-m", "dataprep_assets.cli"]
    return forked.run([*program, *arguments[1:]], cwd=folder, env=environment, timeout=300)


@pytest.mark.slow
def test_a_scaffolded_task_is_declared_and_run_from_the_command_line(cloned: Path) -> None:
    (cloned / "home").mkdir()
    shutil.copy(TEMPLATE / "dagster.yaml", cloned / "home")
    made = command(cloned, "dg", "scaffold", "defs", "dataprep_assets.components.TaskMigration", "my_tasks")
    assert made.returncode == 0, made.stdout + made.stderr
    path = cloned / "dataprep_assets" / "defs" / "my_tasks" / "defs.yaml"
    written = yaml.safe_load(path.read_text())
    assert validate_declaration(TaskMigrationDeclaration, written["attributes"], path).dataset == "my_tasks"

    old_project(path.parent)
    described = {**yaml.safe_load(SENTIMENT), "dataset": "my_tasks"}
    path.write_text(yaml.safe_dump({"type": written["type"], "attributes": described}, sort_keys=False))
    told = json.loads(command(cloned, "dataprep", "status", "my_tasks", "--json").stdout)
    assert [(row["name"], row["reason"]) for row in told["rebuild"]] == [
        ("my_tasks/task_folder/Sentiment", "missing"),
        ("my_tasks/task_folder/CopaEasy", "missing"),
        ("my_tasks/data_card", "missing"),
    ]
    ran = command(cloned, "dataprep", "run", "my_tasks")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"TASK={path.parent}/new/{LAYOUT}/Sentiment" in ran.stdout
    assert "checks: 4 of 4 passed" in ran.stdout
    assert sum(COUNTS.values()) == 23
    assert [line.split()[1:4] for line in ran.stdout.splitlines() if line.startswith("CopaEasy")] == [
        ["base", "3", "23"]
    ]
    again = command(cloned, "dataprep", "run", "my_tasks")
    assert_names(again.stdout, "up to date")
    assert f"TASK={path.parent}/new/{LAYOUT}/Sentiment" in again.stdout
    status = command(cloned, "dataprep", "status", "my_tasks")
    assert status.returncode == 0
    assert f"TASK={path.parent}/new/{LAYOUT}/Sentiment" in status.stdout
    verified = command(cloned, "dataprep", "verify")
    assert verified.returncode == 0
    assert "3 artifacts" in verified.stdout
    for root in ("old", "new"):
        shutil.rmtree(path.parent / root / LAYOUT / "CopaEasy")
    broken = command(cloned, "dataprep", "run", "my_tasks")
    assert broken.returncode == 1
    assert broken.stderr.count("  check ") == 1, broken.stderr
    assert "check files_match_receipt: CopaEasy: copa_train.jsonl: missing in" in broken.stderr
    assert f"TASK={path.parent}/new/{LAYOUT}/Sentiment" in broken.stdout


@pytest.mark.slow
def test_dg_names_the_line_of_a_wrong_key(cloned: Path) -> None:
    path = cloned / "dataprep_assets" / "defs" / "samples" / "sample_tasks" / "defs.yaml"
    path.write_text(path.read_text().replace("mode: symlink", "mode: hardlink"))
    checked = command(cloned, "dg", "check", "defs")
    assert checked.returncode != 0
    told = checked.stdout + checked.stderr
    assert "sample_tasks/defs.yaml:" in told
    assert "ArcC_Cloze.mode" in told
    assert "hardlink" in told
