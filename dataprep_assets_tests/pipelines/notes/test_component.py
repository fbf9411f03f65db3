"""The components of notes from their YAML: what loads, what is refused and with which words, what is scaffolded."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pytest
import yaml
from dagster.components.scaffold.scaffold import Scaffolder, ScaffoldRequest, get_scaffolder

from dataprep_assets.cli.support.project import find_dataset_folder
from dataprep_assets.cli.support.project import use_dataset as dataset_named
from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets.engine.artifact.dataset import validate_declaration
from dataprep_assets.errors import ConfigError
from dataprep_assets.formats.tensorflow import array_record
from dataprep_assets.orchestration import component
from dataprep_assets.orchestration.component import build_dataset_definitions
from dataprep_assets.pipelines.notes.component import CombinedCohorts, PackedCohorts
from dataprep_assets.pipelines.notes.dataset import CohortMixture, Notes
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.resources import StorageResource, create_resources
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.notes.notes_project import notes_attributes


def graph_of(component: Any) -> Any:
    """The graph of a component's assets and checks, bound to a storage."""
    resources = dg.Definitions(resources=create_resources(StorageResource(root="/nowhere")))
    return dg.Definitions.merge(build_dataset_definitions(component), resources).resolve_asset_graph()


def shipped(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((find_dataset_folder(name) / "defs.yaml").read_text())["attributes"]
    return loaded


def test_the_shipped_definition_has_the_seeds_parameters() -> None:
    notes = validate_declaration(
        NotesDeclaration, shipped("arcus_notes"), find_dataset_folder("arcus_notes") / "defs.yaml"
    )
    assert notes.sensitive
    assert len(notes.months.expected_keys) == 24 * 12
    assert (notes.row_length, notes.rows_per_shard, notes.layout) == (8192, 256, "prepacked")
    assert notes.tokenizer.repo == "meta-llama/Llama-3.1-8B"
    assert re.fullmatch(r"[0-9a-f]{40}", notes.tokenizer.revision or "")
    assert notes.patient_key.public is None


def test_its_tokenizer_has_the_tokens_that_it_names(shared: Path) -> None:
    from dataprep_assets.tokenization.bundle import TokenizerBundle

    notes = validate_declaration(
        NotesDeclaration, shipped("arcus_notes"), find_dataset_folder("arcus_notes") / "defs.yaml"
    )
    bundle = TokenizerBundle.load(shared / "tokenizers" / "llama3")
    ids = [
        bundle.choose_separator(notes.document.separator, "text").id,
        bundle.find_token(notes.document.bos, key="bos").id,
        bundle.find_token(notes.pad.token or "", key="pad.token").id,
    ]
    assert ids == [128001, 128000, 128004]


@pytest.mark.parametrize("name", ["arcus_notes", "sample_notes", "sample_replay", "sample_notes_replay_combined"])
def test_the_shipped_definitions_load(name: str) -> None:
    loaded = dataset_named(name)
    assert isinstance(loaded, Notes | CohortMixture)
    assert list(graph_of(loaded).asset_check_keys)


@pytest.mark.parametrize(
    ("engine", "written", "meant"),
    [
        ("format", "{kind}, {when}\n", "{kind}, {when}\n"),
        ("format", "{kind}: ", "{kind}: "),
        ("jinja", "{{ kind }}: {% if when %}-{% endif %}\n", "{{ kind }}: {% if when %}-{% endif %}\n"),
        ("jinja", "{% raw %}{{ kind }}{% endraw %}\n", "{{ kind }}\n"),
    ],
)
def test_a_header_comes_out_of_the_yaml_as_it_was_meant(engine: str, written: str, meant: str) -> None:
    attributes = shipped("sample_notes") | {"template": {"header": written, "engine": engine}}
    context = SimpleNamespace(
        path=find_dataset_folder("sample_notes"), resolution_context=dg.ResolutionContext.default()
    )
    loaded = PackedCohorts.load(PackedCohorts.get_model_cls().model_validate(attributes), context)  # type: ignore[arg-type]
    assert loaded.declaration.template.header == meant


def test_the_graph_is_certificate_rows_shards_directory_in_each_format() -> None:
    notes = validate_declaration(
        NotesDeclaration, notes_attributes(formats=["tfrecord", "array_record"]), find_dataset_folder("sample_notes")
    )
    graph = graph_of(PackedCohorts(notes))
    parents = {
        key.path[-1]: sorted(parent.path[-1] for parent in graph.get(key).parent_keys)
        for key in graph.materializable_asset_keys
    }
    assert parents == {
        "engine_certificate": [],
        "packed_cohorts": ["engine_certificate"],
        "tfrecord_shards": ["packed_cohorts"],
        "tfds_directory": ["tfrecord_shards"],
        "array_record_shards": ["packed_cohorts"],
        "array_record_directory": ["array_record_shards"],
        "data_card": ["array_record_directory", "tfds_directory"],
    }
    key = dg.AssetKey(["notes", "packed_cohorts"])
    assert list(graph.get(key).partitions_def.get_partition_keys()) == notes.months.expected_keys
    assert graph.get(key).tags.get("dataprep/sensitive") is None


def test_a_sensitive_dataset_is_tagged_in_the_ui() -> None:
    attributes = notes_attributes(sensitive=True, patient_key={"env": "SOME_KEY"})
    graph = graph_of(
        PackedCohorts(validate_declaration(NotesDeclaration, attributes, find_dataset_folder("sample_notes")))
    )
    assert {graph.get(key).tags.get("dataprep/sensitive") for key in graph.materializable_asset_keys} == {"true"}


def test_the_process_that_loads_a_sensitive_dataset_leaves_no_core_dump(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(component, "disable_core_dumps", lambda: called.append(True))
    for attributes in (notes_attributes(), notes_attributes(sensitive=True, patient_key={"env": "SOME_KEY"})):
        PackedCohorts(
            validate_declaration(NotesDeclaration, attributes, find_dataset_folder("sample_notes"))
        ).build_defs(cast(Any, None))
    assert called == [True]


@pytest.mark.parametrize(
    ("change", "values"),
    [
        ({"patient_key": {"env": None}}, ("patient_key", "`env`", "`public`")),
        ({"sensitive": True}, ("patient_key.public",)),
        ({"template": {"header": "{nobody}"}}, ("nobody",)),
        ({"cohorts": {"pattern": "x"}}, ("cohorts.pattern",)),
        ({"months": {"first": "2010-13", "last": "2011-01"}}, ("months.first",)),
        ({"splits": {"train": 0.5}}, ("splits", 0.5)),
        ({"tfds_version": "1"}, ("tfds_version",)),
        ({"rows_per_shard": 0}, ("rows_per_shard",)),
        ({"layout": "both"}, ("layout",)),
        ({"unknown_key": 1}, ("unknown_key",)),
    ],
)
def test_a_wrong_key_is_named(change: dict[str, Any], values: tuple[object, ...]) -> None:
    with raises(ConfigError, *values):
        validate_declaration(NotesDeclaration, notes_attributes(**change), Path("/somewhere/defs.yaml"))


COMPONENTS = (PackedCohorts, CombinedCohorts)


def scaffolded(component: Any, folder: Path) -> Path:
    """The declaration that `dg scaffold` writes for a component into a folder `my_notes`."""
    request = ScaffoldRequest(
        type_name="", target_path=folder / "my_notes", scaffold_format="yaml", project_root=folder, params=None
    )
    scaffolder = get_scaffolder(component)
    assert isinstance(scaffolder, Scaffolder)
    scaffolder.scaffold(request)
    return folder / "my_notes" / "defs.yaml"


@pytest.mark.parametrize("component", COMPONENTS)
def test_what_is_scaffolded_is_a_declaration(component: Any, tmp_path: Path) -> None:
    written = scaffolded(component, tmp_path)
    found = validate_declaration(component.model, yaml.safe_load(written.read_text())["attributes"], written)
    assert found.dataset == "my_notes"
    assert list(graph_of(component(found)).asset_check_keys)


def test_the_docs_export_the_patients_key_that_the_scaffold_names(tmp_path: Path) -> None:
    declaration = yaml.safe_load(scaffolded(PackedCohorts, tmp_path).read_text())["attributes"]
    page = PROJECT_ROOT / "docs" / "pipelines" / "notes.md"
    assert f"export {declaration['patient_key']['env']}=" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_key_is_in_the_scaffold(component: Any, tmp_path: Path) -> None:
    written = scaffolded(component, tmp_path).read_text()
    for name in component.model.model_fields:
        assert re.search(rf"^ *(# )?{name}:", written, re.MULTILINE), name


def test_a_format_whose_package_is_not_installed_is_told_before_anything_is_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(array_record, "find_spec", lambda _: None)
    for formats, keys in ((["tfrecord"], []), (["tfrecord", "array_record"], [("formats",)])):
        dataset = Notes(NotesDeclaration.model_validate(notes_attributes(formats=formats)))
        told = [one for one in dataset.remarks() if "array_record package" in one.sentence]
        assert [one.keys for one in told] == keys
        assert all("dataprep-assets[array_record]" in one.sentence and not one.hint for one in told)
