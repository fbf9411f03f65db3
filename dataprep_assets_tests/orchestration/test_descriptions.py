"""What Dagster's tools show of our components: every key of every declaration is described."""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from dataprep_assets import components


def undescribed(schema: dict[str, Any]) -> Iterator[str]:
    """Keys of a JSON schema, as `dg utils inspect-component` prints it, that have no description."""
    for name, part in {"": schema, **schema.get("$defs", {})}.items():
        for key, field in part.get("properties", {}).items():
            if not field.get("description", "").strip():
                yield f"{name}.{key}".lstrip(".")


@pytest.mark.parametrize("name", components.__all__)
def test_a_component_and_every_key_of_its_declaration_are_described(name: str) -> None:
    component = getattr(components, name)
    schema = component.get_model_cls().model_json_schema()
    assert len(schema["properties"]) > 5
    assert list(undescribed(schema)) == []
    assert (inspect.getdoc(component) or "").splitlines()[0].endswith("."), "the line of `dg list components`"


def test_a_key_without_a_description_is_found() -> None:
    described = {"type": "object", "properties": {"kind": {"description": "Which."}}}
    assert list(undescribed(described)) == []
    inner = {"properties": {"path": {"title": "Path"}, "url": {"description": " "}}}
    assert list(undescribed({**described, "$defs": {"Source": inner}})) == ["Source.path", "Source.url"]
