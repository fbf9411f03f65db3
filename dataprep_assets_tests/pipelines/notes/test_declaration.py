"""What cannot work is refused when the YAML is read, and no refusal shows a secret."""

from typing import Any

import pytest
from pydantic import ValidationError

from dataprep_assets.errors import ConfigError, TokenizerError
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.notes_plan import build_notes_plan
from dataprep_assets.pipelines.notes.patient_key import PatientKey
from dataprep_assets.pipelines.notes.rendering import HeaderTemplate, MissingFieldError, RenderError
from dataprep_assets.pipelines.notes.replay.replay_declaration import MixtureDeclaration
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.corpus.shards import certificate
from dataprep_assets_tests.pipelines.notes.pipeline import SAMPLES, declaration


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({"dataset": "Notes"}, ("lower-case",)),
        ({"months": {"first": "2010-02", "last": "2010-01"}}, ("last",)),
        ({"months": {"first": "2010-01", "last": "2010-01", "allow_missing": ["2010-01"]}}, ("months",)),
        ({"splits": {"train": 0.9, "val": 0.2}}, ("splits",)),
        ({"splits": {"Train": 1.0}}, ("lower-case",)),
        ({"template": {"header": "{nobody}"}}, ("nobody",)),
        ({"template": {"header": "{kind.__class__}"}}, ("{kind.__class__}",)),
        ({"template": {"header": "{kind"}}, ("template.header",)),
        ({"template": {"header": "{{ kind", "engine": "jinja"}}, ("template.header",)),
        ({"template": {"header": "x", "defaults": {"nobody": ""}}}, ("nobody",)),
        ({"cohorts": {"pattern": r"\d+\.json"}}, ("groups",)),
        ({"cohorts": {"fields": {"patient_id": "$key"}}, "template": {}}, ("json_object",)),
        ({"cohorts": {"fields": {"date": None}}, "template": {}}, ("order: date",)),
        ({"layout": "unpacked", "targets": True}, ("targets",)),
        (
            {"layout": "unpacked", "pad": {"token": "<|pad|>"}},
            ("`pad`", "unpacked"),
        ),
        ({"pad": None}, ("prepacked", "`pad`")),
        ({"rows": "stream"}, ("`rows: stream`", "unpacked")),
        (
            {"layout": "unpacked", "formats": ["array_record"]},
            ("`pipeline: tfds`", "`tfrecord`", "`formats`", "`pipeline: grain`"),
        ),
        ({"long_notes": {"overlap": 256}}, ("overlap",)),
        ({"pad": {}}, ("pad",)),
        ({"tfds_version": "1.2"}, ("tfds_version",)),
        ({"formats": ["tfrecord", "tfrecord"]}, ("twice",)),
        ({"unknown": 1}, ("unknown",)),
    ],
)
def test_a_declaration_that_cannot_work_is_refused(changes: dict[str, Any], values: tuple[object, ...]) -> None:
    with raises(ValidationError, *values):
        declaration(**changes)


def test_notes_are_sensitive_unless_declared_otherwise_and_then_need_a_secret_key() -> None:
    values = declaration().model_dump()
    del values["sensitive"]
    with raises(ValidationError, "patient_key.env") as raised:
        NotesDeclaration.model_validate(values)
    assert values["patient_key"]["public"] not in str(raised.value)
    assert NotesDeclaration.model_validate(values | {"patient_key": {"env": "NOTES_KEY"}}).sensitive


def test_a_key_that_is_missing_or_short_is_refused_without_showing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    key = PatientKey(env="NOTES_TEST_KEY")
    monkeypatch.delenv("NOTES_TEST_KEY", raising=False)
    with raises(ConfigError, "NOTES_TEST_KEY"):
        key.load()
    monkeypatch.setenv("NOTES_TEST_KEY", "secret-but-short")
    with raises(ConfigError, 16) as raised:
        key.load()
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("pad", "values"),
    [
        ({"token": "<|endoftext|>"}, (4094, "`may_occur: true`")),
        ({"id": 0}, (0, "ordinary")),
        ({"id": 4096}, (4096,)),
        ({"token": "<|nothing|>"}, ("<|nothing|>",)),
    ],
)
def test_a_pad_id_that_documents_may_hold_is_refused_unless_declared(
    pad: dict[str, Any], values: tuple[object, ...]
) -> None:
    with raises((ConfigError, TokenizerError), *values):
        build_notes_plan(declaration(pad=pad), certificate())
    if pad in ({"id": 0}, {"token": "<|endoftext|>"}):
        assert build_notes_plan(declaration(pad={**pad, "may_occur": True}), certificate()).shape.pad_id >= 0


def test_plans_do_not_show_the_key() -> None:
    assert "known to everyone" not in repr(build_notes_plan(declaration(), certificate()))
    assert "known to everyone" not in repr(declaration())


def test_formats_and_jinja_render_the_same_and_the_sandbox_holds() -> None:
    values = {"kind": "walk {x} {{ y }}", "on": "2011"}
    plain = HeaderTemplate("{kind} {{on}} {on}\n", engine="format", fields=values, defaults={})
    assert plain(values) == "walk {x} {{ y }} {on} 2011\n"
    jinja = HeaderTemplate("{{ kind }}{% if on == '2011' %}!{% endif %}\n", engine="jinja", fields=values, defaults={})
    assert jinja(values) == "walk {x} {{ y }}!\n"
    with pytest.raises(MissingFieldError):
        jinja({"kind": "walk"})
    escape = HeaderTemplate("{{ kind.__class__.__mro__ }}", engine="jinja", fields=values, defaults={})
    with raises(RenderError) as refused:
        escape(values)
    assert str(refused.value) == ""


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({"sources": [{"dataset": "a"}, {"dataset": "a"}]}, ("twice",)),
        ({"sources": [{"dataset": "combined"}]}, ("own source",)),
        ({"sources": [{"dataset": "a", "weight": 1}]}, ("weights",)),
        ({"mode": "weighted", "sources": [{"dataset": "a", "weight": 1}, {"dataset": "b"}]}, ("weights",)),
        ({"mode": "weighted", "sources": [{"dataset": "a"}]}, ("weight",)),
        (
            {"mode": "virtual", "sources": [{"dataset": "a", "weight": 1}]},
            ("weights", "tfds.builder_from_directories"),
        ),
    ],
)
def test_a_combination_that_cannot_work_is_refused(changes: dict[str, Any], values: tuple[object, ...]) -> None:
    with raises(ValidationError, *values):
        MixtureDeclaration.model_validate({"dataset": "combined", "sources": [{"dataset": "a"}], **changes})


def test_relative_paths_are_those_of_the_yaml() -> None:
    located = declaration(SAMPLES.relative_to(SAMPLES.parent), storage="out").resolve_paths(SAMPLES.parent)
    assert located.source.path == SAMPLES  # type: ignore[union-attr]
    assert located.storage == str(SAMPLES.parent / "out")
