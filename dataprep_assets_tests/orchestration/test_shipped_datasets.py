"""Shipped datasets are separate from the user's own: tagged, and shown according to DATAPREP_SHOW."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import dagster as dg
import pytest

from dataprep_assets import project as shipped_module
from dataprep_assets.cli.support import project
from dataprep_assets.code_location import bind_resources, definitions_of
from dataprep_assets.declarations import find_files_below
from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets.errors import ConfigError
from dataprep_assets.orchestration.component import build_dataset_definitions
from dataprep_assets.project import SHIPPED_FOLDERS, SHOWN_AS, find_shipped_kind, is_shown
from dataprep_assets_tests.messages import raises

DEFS = PROJECT_ROOT / "dataprep_assets" / "defs"


def read_group_tags() -> dict[str, set[str | None]]:
    """Return each dataset of a newly loaded code location with the tags of its assets."""
    found: dict[str, set[str | None]] = {}
    loaded = bind_resources(dg.ComponentTree.for_project(DEFS).build_defs(Path()), PROJECT_ROOT)
    for spec in loaded.resolve_all_asset_specs():
        if spec.group_name == "overview":  # this group is the overview page, not a dataset
            continue
        found.setdefault(spec.group_name or "", set()).add(spec.tags.get(SHOWN_AS))
    return found


def shipped(folder: str) -> set[str]:
    return {path.parent.name for path in (DEFS / folder).glob("*/defs.yaml")}


@pytest.mark.parametrize(
    ("said", "folders"),
    [
        (None, ["samples"]),
        ("", ["samples"]),
        ("samples,examples", ["samples", "examples"]),
        ("examples", ["examples"]),
        ("none", []),
    ],
)
def test_the_location_contains_the_requested_datasets_and_tags_them(
    said: str | None, folders: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATAPREP_SHOW", raising=False)
    if said is not None:
        monkeypatch.setenv("DATAPREP_SHOW", said)
    assert read_group_tags() == {name: {SHIPPED_FOLDERS[folder]} for folder in folders for name in shipped(folder)}


def load_keys() -> tuple[set[str], set[str]]:
    """Return the assets of this project's code location, and the entries of its metadata."""
    loaded = definitions_of(PROJECT_ROOT)
    return {spec.key.to_user_string() for spec in loaded.resolve_all_asset_specs()}, set(loaded.metadata or {})


def test_the_process_of_a_run_has_the_same_assets_but_no_documentation_of_components() -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assets_of_run, metadata_of_run = pool.submit(load_keys).result()
    assets, metadata = load_keys()
    assert assets_of_run == assets
    assert metadata - metadata_of_run == {"plugin_component_types_json"}


def test_an_invalid_value_is_named() -> None:
    with raises(ConfigError, "DATAPREP_SHOW", "'sample'"):
        is_shown("sample", {"DATAPREP_SHOW": "examples,sample"})


def test_the_users_own_datasets_are_always_shown_without_a_tag() -> None:
    assert is_shown(None, {"DATAPREP_SHOW": "none"})
    dataset = type(project.use_dataset("sample_replay"))(project.use_dataset("sample_replay").declaration)
    definitions = bind_resources(build_dataset_definitions(dataset), PROJECT_ROOT)
    assert all(SHOWN_AS not in spec.tags for spec in definitions.resolve_all_asset_specs())


def test_a_hidden_example_can_be_used_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATAPREP_SHOW", raising=False)
    component = project.use_dataset("dclm_2t")
    assert component.declaration.dataset == "dclm_2t"
    definitions = bind_resources(build_dataset_definitions(component), PROJECT_ROOT)
    assert {spec.tags[SHOWN_AS] for spec in definitions.resolve_all_asset_specs() if SHOWN_AS in spec.tags} == {
        "example"
    }
    assert project.find_dataset_folder("dclm_2t") == DEFS / "examples" / "dclm_2t"
    assert project.find_dataset_folder("not_there") == DEFS / "not_there"


def test_of_two_datasets_with_one_name_the_users_own_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped_module, "SHIPPED", tmp_path)
    texts = {
        "examples/dclm_2t": "dclm_2t",
        "samples/tales": "tales",
        "mine/first": "dclm_2t",
        "mine/samples": "third",
    }
    for folder, name in texts.items():
        (tmp_path / folder).mkdir(parents=True)
        text = f"type: dataprep_assets.components.TokenizedCorpus\nattributes:\n  dataset: {name}\n"
        (tmp_path / folder / "defs.yaml").write_text(text)
    files = find_files_below(tmp_path)
    assert {name: path.parent.relative_to(tmp_path).as_posix() for name, path in files.items()} == {
        "dclm_2t": "mine/first",
        "tales": "samples/tales",
        "third": "mine/samples",
    }


def test_a_users_folder_may_have_the_name_of_one_of_ours(tmp_path: Path) -> None:
    assert [find_shipped_kind(tmp_path / folder / "mine") for folder in SHIPPED_FOLDERS] == [None, None]
    assert find_shipped_kind(DEFS / "examples" / "dclm_2t") == "example"
