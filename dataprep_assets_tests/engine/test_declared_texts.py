"""A text in a `defs.yaml` has its YAML meaning in every key of every component."""

import importlib
import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml  # type: ignore[import-untyped]
from pydantic import BaseModel

from dataprep_assets.components import PIPELINES, find_dataset_class
from dataprep_assets.declarations import Declarations, describe_reason
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.engine.yaml.mistakes import SECRETS
from dataprep_assets.errors import ConfigError
from dataprep_assets.project import SHIPPED
from dataprep_assets_tests.engine.text_keys import TextKey, find_text_keys, insert_block

TEXTS = ["\n", "\n\n", "0", "1.0", "None", "2026", "...", "{}", " a\r\n", "{{"]
"""Texts that templates or a parser of literals would change."""
PLAIN = "abc"
SHARED = set(DatasetDeclaration.model_fields)
BESIDE = {"accept", "tasks", "source_key", "priority"}
"""Blocks that are refused because of keys next to the text: the name of a task has no contract, and `source_key`
requires `sensitive: true`."""
_COLUMNS = {"columns": {"abc": "string"}}
COMPLETE: list[dict[str, Any]] = [
    {"automation": {"on_failure": {"email": {"host": "mail", "from": "a@example.org", "to": ["b@example.org"]}}}},
    {"rewrite": [{"function": "abc:abc"}]},
    {"tag": [{"url_lists": {"column": "source", "lists": {"abc": "abc"}}}]},
    {"tag": [{"robots": {"column": "source", "files": "abc", "agent": "abc"}}]},
    {"tag": [{"asset": ["abc"], **_COLUMNS}]},
    {"tag": [{"function": "abc:abc", **_COLUMNS}]},
    {"tag": [{"command": ["abc", "{input}", "{output}"], "name": "abc", "version": "1", **_COLUMNS}]},
]
"""Complete blocks of keys that no shipped declaration of a component has."""
TWINS = {"valid": "train", "test": "train"}
"""Keys of a blend that share a model with another key."""


class Project:
    """A project with one `defs.yaml`, loaded by `dataprep` and by Dagster."""

    def __init__(self, root: Path) -> None:
        self.root, self.package = root, f"texts_{root.name.replace('-', '_')}"
        self.path = root / self.package / "defs" / "one" / "defs.yaml"
        self.path.parent.mkdir(parents=True)
        for folder in (self.path.parents[1], self.path.parents[2]):
            (folder / "__init__.py").touch()

    def write(self, component: str, attributes: Any) -> None:
        # Write JSON, which is valid YAML and puts every text in quotes.
        self.path.write_text(f"type: dataprep_assets.components.{component}\nattributes: {json.dumps(attributes)}\n")

    def by_dataprep(self) -> "BaseModel | str":
        declarations = Declarations(importlib.import_module(f"{self.package}.defs"), self.root)
        try:
            return declarations.load(self.path).declaration  # type: ignore[union-attr]
        except ConfigError as error:
            return str(error)

    def by_dagster(self) -> "BaseModel | str":
        tree = dg.ComponentTree.from_module(importlib.import_module(f"{self.package}.defs.one"), self.root)
        try:
            return tree.load_component(Path()).declaration  # type: ignore[attr-defined, no-any-return]
        except Exception as error:  # Dagster wraps our exception
            return describe_reason(error)

    def expected(self, component: str, attributes: Any) -> "BaseModel | str":
        """Return the declaration that the values give without YAML."""
        try:
            return find_dataset_class(component).from_attributes(attributes, self.path).declaration
        except ConfigError as error:
            return str(error)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    sys.path.insert(0, str(tmp_path))
    yield Project(tmp_path)
    sys.path.remove(str(tmp_path))


@cache
def find_attributes(component: str) -> list[dict[str, Any]]:
    """Return the attributes of the shipped datasets of a component."""
    files = [yaml.safe_load(path.read_text()) for path in sorted(SHIPPED.rglob("defs.yaml"))]
    return [json.loads(json.dumps(f["attributes"], default=str)) for f in files if f["type"].endswith(f".{component}")]


def find_own_keys(component: str) -> list[TextKey]:
    """Return the keys of a component that take a text; common keys are returned for one component only."""
    found = find_text_keys(find_dataset_class(component).model.model_json_schema())
    shared = component == "TrainingSchedule"
    # A schedule has all common keys but this one, which it refuses.
    found = [key for key in found if not (shared and key.keys[0] == "publish")]
    return [
        key
        for key in found
        if (shared or key.keys[0] not in SHARED - {"publish"}) and TWINS.keys().isdisjoint(key.keys)
    ]


def find_base(project: Project, component: str, key: TextKey) -> tuple[dict[str, Any], list[str | int]]:
    """Return a shipped declaration in which only the key's own text matters, and the keys that are not replaced
    in it.
    """
    whole = str(key).replace("[key]", PLAIN)
    named = [f"{whole}: ", f"{whole.removesuffix('.0')}: ", repr(PLAIN), f"unknown fields {PLAIN}"]
    shipped = sorted(find_attributes(component), key=lambda base: key.keys[0] not in base)
    completed = [{**base, **block} for base in shipped for block in COMPLETE if block.keys() == {key.keys[0]}]
    for base in (*shipped, *completed):
        for keys in ([*key.keys], [*key.keys[:1]]):
            found = project.expected(component, insert_block(base, key.build(PLAIN), keys))
            if not isinstance(found, str) or any(name in found for name in named) or not BESIDE.isdisjoint(key.keys):
                return base, keys
    raise AssertionError(f"{component}: {key}: no shipped declaration has a place for it: {found}")


def may_be_quoted(component: str, key: TextKey) -> bool:
    """Return whether a message may quote the text, which may be a secret or come from notes."""
    hidden = find_dataset_class(component).model.model_config.get("hide_input_in_errors", False)
    return not hidden and SECRETS.isdisjoint(key.keys) and BESIDE.isdisjoint(key.keys)


@pytest.mark.slow
@pytest.mark.parametrize("component", sorted(PIPELINES))
def test_every_text_of_every_key_is_loaded_unchanged(component: str, project: Project) -> None:
    for number, key in enumerate(find_own_keys(component)):
        base, keys = find_base(project, component, key)
        for text in TEXTS:
            attributes = insert_block(base, key.build(text), keys)
            project.write(component, attributes)
            expected = project.expected(component, attributes)
            assert project.by_dataprep() == expected, (key, text)
            if text == TEXTS[number % len(TEXTS)]:
                assert project.by_dagster() == expected, (key, text)
            if isinstance(expected, str) and text.strip() and may_be_quoted(component, key):
                # Ignore the path, because its digits could equal the text. Do not require the text in a message about
                # several keys, because such a message quotes no text.
                said = expected.rpartition("defs.yaml:")[2]
                assert f" {key}: " not in said or repr(text) in said or text.strip() in said, (key, text, expected)


RENDERED = [
    ("{{ env.X }}", "2026", "2026"),
    ("{{ env.X }}\n", "None", "None\n"),
    ("\n{{ env.X }}\n\n", "...", "\n...\n\n"),
    ("a\r\n{{ env.X }}\r\n", "b", "a\r\nb\r\n"),
    ("{{ env.X }}{{ env.X }}", "1", "11"),
    ("{% if env.X == 'a' %}b{% endif %}", "c", ""),
    ("{% raw %}{{ env.X }}{% endraw %}", "c", "{{ env.X }}"),
    ("{{ 'a' }}", "", "a"),
    ("{{ env('NOT_SET_ANYWHERE', 'other') }}", "", "other"),
    ("{{ datetime.timedelta(days=7).days }} days", "", "7 days"),
    ("{{", "", "{{"),
    ("{{}} {%%}", "", "{{}} {%%}"),
    ("{# not a comment #}", "", "{# not a comment #}"),
    ("&<{{ env.X }}>", "&", "&<&>"),
]


@pytest.mark.parametrize(("written", "value", "meant"), RENDERED)
def test_a_template_in_a_text_stays_text(
    written: str, value: str, meant: str, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("X", value)
    (base,) = (one for one in find_attributes("TokenizedCorpus") if one["dataset"] == "sample_corpus")
    project.write("TokenizedCorpus", {**base, "description": written})
    for found in (project.by_dataprep(), project.by_dagster()):
        assert getattr(found, "description", found) == meant


def test_a_number_as_a_text_is_refused_and_a_project_variable_is_an_object(project: Project) -> None:
    (base,) = (one for one in find_attributes("TokenizedCorpus") if one["dataset"] == "sample_corpus")
    project.write("TokenizedCorpus", {**base, "description": 2026})
    assert str(project.by_dataprep()).endswith("description: must be text, not 2026")
    (project.root / project.package / "template_vars.py").write_text(
        "import dagster as dg\n\n\n@dg.template_var\ndef word():\n    return '1.0'\n"
    )
    project.write("TokenizedCorpus", {**base, "description": "{{ word }}"})
    project.path.write_text(f"template_vars_module: {project.package}.template_vars\n{project.path.read_text()}")
    for found in (project.by_dataprep(), project.by_dagster()):
        assert getattr(found, "description", found) == "1.0"


@pytest.mark.parametrize("written", ["{{ env.X }", "{{ (1 }}", "{{ nothing }}", "{{ env.NOT_SET.x }}"])
def test_a_template_that_cannot_be_rendered_is_refused_with_its_line_and_key(written: str, project: Project) -> None:
    (base,) = (one for one in find_attributes("TokenizedCorpus") if one["dataset"] == "sample_corpus")
    project.write("TokenizedCorpus", {**base, "description": written})
    for found in (project.by_dataprep(), project.by_dagster()):
        assert str(found).startswith(f"{project.path}:2: description: ")
