"""The declaration is checked once, and says which key is wrong."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dataprep_assets.pipelines.tasks.declaration import TaskMigrationDeclaration


def declared(**more: Any) -> TaskMigrationDeclaration:
    return TaskMigrationDeclaration.model_validate(
        {"dataset": "tasks", "old_root": "old", "new_root": "../new", "tasks": {"Copa": {}}, **more}
    )


def test_paths_are_relative_to_the_yaml_and_the_layout_is_the_trainers() -> None:
    made = declared(original="original", storage="artifacts").located(Path("/somewhere/defs"))
    assert made.old_tasks == Path("/somewhere/defs/old/Data/rejection_sampling/0_data")
    assert made.new_tasks == Path("/somewhere/new/Data/rejection_sampling/0_data")
    assert made.original == Path("/somewhere/defs/original")
    assert made.storage == "/somewhere/defs/artifacts"
    assert declared(layout=".").located(Path("/a")).new_tasks == Path("/new")


def test_each_project_may_keep_its_folders_in_a_place_of_its_own() -> None:
    made = declared(old_layout="Data/original", layout="Data/synthetic").located(Path("/somewhere/defs"))
    assert made.old_tasks == Path("/somewhere/defs/old/Data/original")
    assert made.new_tasks == Path("/somewhere/new/Data/synthetic")
    assert declared(new_layout=".").located(Path("/a")).new_tasks == Path("/new")
    with pytest.raises(ValidationError, match="must be a path below the projects' roots"):
        declared(new_layout="../up")


def test_defaults_are_the_safe_ones() -> None:
    made = declared()
    task = made.tasks["Copa"]
    assert (task.version, task.mode, task.inherit, task.versions_in) == (
        "base",
        "copy",
        ("validation", "test"),
        "mezo_gpt",
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tasks": {}}, "at least 1 item"),
        (
            {"tasks": {"Cope": {}}},
            r"tasks\.Cope: unknown contract",
        ),
        ({"tasks": {"Copa": {"mode": "move"}}}, "Input should be 'copy' or 'symlink'"),
        ({"tasks": {"Copa": {"version": "../version_1"}}}, "should match pattern"),
        ({"tasks": {"Copa": {"inherit": ["train"]}}}, "Input should be 'validation' or 'test'"),
        ({"tasks": {"Copa": {"versions_in": "../CB"}}}, "must be a folder below the task's"),
        ({"tasks": {"Copa": {"verson": "base"}}}, "Extra inputs are not permitted"),
        ({"layout": "/absolute"}, "must be a path below the projects' roots"),
        ({"layout": "../up"}, "must be a path below the projects' roots"),
        ({"contracts": {"Mine": {"like": "Nothing"}}}, "contracts.Mine: like: unknown contract 'Nothing'. Available"),
        ({"contracts": {"Mine": {"like": "CB", "id": "x"}}}, "id: unknown key 'x'. Available"),
        ({"contracts": {"Mine": {"like": "CB", "folder": "Yours"}}}, "folder: 'Yours': must be 'Mine'"),
        ({"sensitive": "perhaps"}, "valid boolean"),
    ],
)
def test_a_wrong_value_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        declared(**change)


def test_the_declaration_survives_a_round_trip_through_json() -> None:
    made = declared(contracts={"Mine": {"like": "CB", "files": {"train": {"rows": 5}}}}, tasks={"Mine": {}, "Copa": {}})
    again = TaskMigrationDeclaration.model_validate(made.model_dump(mode="json", exclude_unset=True))
    assert list(again.tasks) == ["Mine", "Copa"]
    assert [again.contract(task) for task in again.tasks] == [made.contract(task) for task in made.tasks]
    assert again.contract("Mine").files["train"].rows == (5,)


def test_a_declared_contract_overrides_the_shipped_one_of_its_name() -> None:
    made = declared(contracts={"Copa": {"like": "Copa", "files": {"test": {"required": True}}}})
    assert made.contract("Copa").files["test"].required
    assert not declared().contract("Copa").files["test"].required


def test_the_schema_can_be_written_for_an_editor() -> None:
    schema = TaskMigrationDeclaration.model_json_schema()
    assert {"dataset", "old_root", "new_root", "tasks"} == set(schema["required"])
