"""The declaration is validated once, and errors name the wrong key."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dataprep_assets.pipelines.tasks.declaration import TaskMigrationDeclaration
from dataprep_assets_tests.messages import raises


def declared(**more: Any) -> TaskMigrationDeclaration:
    return TaskMigrationDeclaration.model_validate(
        {"dataset": "tasks", "old_root": "old", "new_root": "../new", "tasks": {"Copa": {}}, **more}
    )


def test_paths_are_relative_to_the_yaml_and_the_layout_is_the_trainers() -> None:
    made = declared(original="original", storage="artifacts").resolve_paths(Path("/somewhere/defs"))
    assert made.old_tasks == Path("/somewhere/defs/old/Data/rejection_sampling/0_data")
    assert made.new_tasks == Path("/somewhere/new/Data/rejection_sampling/0_data")
    assert made.original == Path("/somewhere/defs/original")
    assert made.storage == "/somewhere/defs/artifacts"
    assert declared(layout=".").resolve_paths(Path("/a")).new_tasks == Path("/new")


def test_each_project_may_have_its_folders_at_its_own_path() -> None:
    made = declared(old_layout="Data/original", layout="Data/synthetic").resolve_paths(Path("/somewhere/defs"))
    assert made.old_tasks == Path("/somewhere/defs/old/Data/original")
    assert made.new_tasks == Path("/somewhere/new/Data/synthetic")
    assert declared(new_layout=".").resolve_paths(Path("/a")).new_tasks == Path("/new")
    with raises(ValidationError, "new_layout"):
        declared(new_layout="../up")


def test_the_defaults_are_safe() -> None:
    made = declared()
    task = made.tasks["Copa"]
    assert (task.version, task.mode, task.inherit, task.versions_in) == (
        "base",
        "copy",
        ("validation", "test"),
        "mezo_gpt",
    )


@pytest.mark.parametrize(
    ("change", "values"),
    [
        ({"tasks": {}}, ("tasks", 1)),
        (
            {"tasks": {"Cope": {}}},
            ("tasks.Cope",),
        ),
        ({"tasks": {"Copa": {"mode": "move"}}}, ("'copy' or 'symlink'",)),
        ({"tasks": {"Copa": {"version": "../version_1"}}}, ("version", "pattern")),
        ({"tasks": {"Copa": {"inherit": ["train"]}}}, ("'validation' or 'test'",)),
        ({"tasks": {"Copa": {"versions_in": "../CB"}}}, ("'../CB'",)),
        ({"tasks": {"Copa": {"verson": "base"}}}, ("verson",)),
        ({"layout": "/absolute"}, ("layout",)),
        ({"layout": "../up"}, ("layout",)),
        ({"contracts": {"Mine": {"like": "Nothing"}}}, ("contracts.Mine", "like", "'Nothing'")),
        ({"contracts": {"Mine": {"like": "CB", "id": "x"}}}, ("id", "'x'")),
        ({"contracts": {"Mine": {"like": "CB", "folder": "Yours"}}}, ("folder", "'Yours'", "'Mine'")),
        ({"sensitive": "perhaps"}, ("sensitive", "boolean")),
    ],
)
def test_a_wrong_value_is_named(change: dict[str, Any], values: tuple[object, ...]) -> None:
    with raises(ValidationError, *values):
        declared(**change)


def test_the_declaration_survives_a_round_trip_through_json() -> None:
    made = declared(contracts={"Mine": {"like": "CB", "files": {"train": {"rows": 5}}}}, tasks={"Mine": {}, "Copa": {}})
    again = TaskMigrationDeclaration.model_validate(made.model_dump(mode="json", exclude_unset=True))
    assert list(again.tasks) == ["Mine", "Copa"]
    assert [again.find_contract(task) for task in again.tasks] == [made.find_contract(task) for task in made.tasks]
    assert again.find_contract("Mine").files["train"].rows == (5,)


def test_a_declared_contract_overrides_the_shipped_one_with_its_name() -> None:
    made = declared(contracts={"Copa": {"like": "Copa", "files": {"test": {"required": True}}}})
    assert made.find_contract("Copa").files["test"].required
    assert not declared().find_contract("Copa").files["test"].required


def test_the_schema_can_be_written_for_an_editor() -> None:
    schema = TaskMigrationDeclaration.model_json_schema()
    assert {"dataset", "old_root", "new_root", "tasks"} == set(schema["required"])
