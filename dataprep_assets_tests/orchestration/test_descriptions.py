"""Dagster's tools show a description of our components and of every key of their declarations."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dataprep_assets import components
from dataprep_assets.code_location import definitions_of
from dataprep_assets.curation.table import COLUMN_DESCRIPTIONS
from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets.errors import ConfigError
from dataprep_assets.project_template import write_project


def find_undescribed(schema: dict[str, Any]) -> Iterator[str]:
    """Return the keys without a description in a JSON schema, as `dg utils inspect-component` prints it."""
    for name, part in {"": schema, **schema.get("$defs", {})}.items():
        for key, field in part.get("properties", {}).items():
            if not field.get("description", "").strip():
                yield f"{name}.{key}".lstrip(".")


@pytest.mark.parametrize("name", components.__all__)
def test_every_component_and_every_key_has_a_description(name: str) -> None:
    component = getattr(components, name)
    schema = component.get_model_cls().model_json_schema()
    assert len(schema["properties"]) > 5
    assert list(find_undescribed(schema)) == []
    assert schema == component.model.model_json_schema()
    assert (inspect.getdoc(component) or "").splitlines()[0].endswith("."), "the line of `dg list components`"


def test_a_key_without_a_description_is_found() -> None:
    described = {"type": "object", "properties": {"kind": {"description": "Which."}}}
    assert list(find_undescribed(described)) == []
    inner = {"properties": {"path": {"title": "Path"}, "url": {"description": " "}}}
    assert list(find_undescribed({**described, "$defs": {"Source": inner}})) == ["Source.path", "Source.url"]


def test_a_mistake_is_reported_with_our_message_when_dagster_loads_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project's `definitions.py` may call Dagster's `load_from_defs_folder` instead of ours."""
    root = tmp_path / "loaded_by_dagster"
    write_project(root)
    monkeypatch.syspath_prepend(root)
    path = root / "loaded_by_dagster" / "defs" / "sample_corpus" / "defs.yaml"
    path.write_text(path.read_text().replace("splits:", "spilts:", 1))
    with pytest.raises(Exception, match="Error while loading component") as caught:
        dg.load_from_defs_folder(path_within_project=root)
    cause = caught.value.__cause__
    assert isinstance(cause, ConfigError)
    line = next(at for at, text in enumerate(path.read_text().splitlines(), 1) if "spilts" in text)
    assert str(cause) == f"{path}:{line}: spilts: unknown key; did you mean `splits`?"
    assert cause.__cause__ is None
    assert cause.__suppress_context__


def test_every_column_of_a_shipped_dataset_has_a_description(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAPREP_SHOW", "samples,examples")
    described = {}
    for spec in definitions_of(PROJECT_ROOT).resolve_all_asset_specs():
        schema = spec.metadata.get("dagster/column_schema")
        for column in [] if schema is None else schema.columns:
            described[spec.key.to_user_string(), column.name] = column.description or ""
    assert len(described) > 100
    assert [key for key, text in described.items() if not re.fullmatch(r"[\w`].*\.", text)] == []
    assert described["sample_documents/documents_train", "row"] == COLUMN_DESCRIPTIONS["row"]
