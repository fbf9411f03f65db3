"""Tests of transforms of RL records."""

import sys
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.errors import ConfigError
from dataprep_assets.pipelines.blend.declaration import SourceAccessDeclaration
from dataprep_assets.pipelines.blend.rl.transforms import build_fingerprint, compose_steps
from dataprep_assets_tests.messages import raises

NOWHERE = SourceAccessDeclaration()
PARAMS = {"input": [{"role": "user", "content": "hi"}], "tools": [{"name": "search"}]}


def _apply(record: dict[str, Any], *declared: Any) -> dict[str, Any] | None:
    made: dict[str, Any] | None = record
    for step in compose_steps(declared):
        if made is None:
            return None
        made = step.transform(made)
    return made


@pytest.mark.parametrize(
    ("declared", "record", "wanted"),
    [
        ("sft", {"input": "a", "output": "b", "more": 1}, {"input": "a", "output": "b"}),
        (
            {"sft": {"input": "q", "output": "r", "system": "s"}},
            {"q": "a", "r": "b", "s": "c"},
            {"input": "a", "output": "b", "system": "c"},
        ),
        ({"sft": {"system": "s"}}, {"input": "a", "output": "b"}, {"input": "a", "output": "b"}),
        ("openai_chat", {"messages": [1], "x": 2}, {"messages": [1]}),
        ({"openai_chat": {"messages": "turns"}}, {"turns": [1]}, {"messages": [1]}),
        ("sharegpt", {"conversations": [1], "x": 2}, {"conversations": [1]}),
        ("nemotron_rl", {"responses_create_params": PARAMS}, {"messages": PARAMS["input"], "tools": PARAMS["tools"]}),
        ("nemotron_rl", {"responses_create_params": {"input": [1], "tools": []}}, {"messages": [1]}),
        ("nemotron_rl", {"responses_create_params": None}, None),
        ("passthrough", {"any": "thing"}, {"any": "thing"}),
        ({"select": ["a", "b"]}, {"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 2}),
        ({"rename": {"new": "old"}}, {"old": 1, "x": 2}, {"new": 1}),
    ],
)
def test_all_upstream_transforms_are_available(declared: Any, record: dict[str, Any], wanted: Any) -> None:
    assert _apply(record, declared) == wanted


def test_transforms_are_applied_in_order() -> None:
    steps = ["nemotron_rl", {"rename": {"conversation": "messages"}}]
    assert _apply({"responses_create_params": PARAMS}, *steps) == {"conversation": PARAMS["input"]}


@pytest.mark.parametrize(
    ("declared", "values"),
    [
        ("nemotron", ("'nemotron'",)),
        ({"sft": {"inputs": "x"}}, ("inputs",)),
        ({"select": []}, ("fields",)),
        ("rename", ("fields",)),
        ({"select": ["a"], "sft": {}}, ("`-`",)),
        ("no_such_module:f", ("imported",)),
        ("json:no_such_function", ("imported",)),
        ("math:pi", ("math:pi",)),
        ("resolve_hf_placeholders", ("sources",)),
        ({"json:dumps": ["a"]}, ("json:dumps", "['a']")),
    ],
)
def test_impossible_transforms_are_refused_before_any_data_is_read(declared: Any, values: tuple[str, ...]) -> None:
    with raises(ConfigError, *values):
        build_fingerprint([declared], NOWHERE)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "my_rl_functions.py"
    path.write_text("def shout(record, times=1):\n    return {'text': record['text'].upper() * times}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_rl_functions", raising=False)
    return path


@pytest.mark.parametrize(("text", "raised"), [("def f(:\n", "SyntaxError"), ("raise KeyError('x')\n", "KeyError")])
def test_a_module_that_cannot_be_imported_is_named(own: Path, text: str, raised: str) -> None:
    own.write_text(text)
    with raises(ConfigError, "my_rl_functions:shout", raised):
        build_fingerprint(["my_rl_functions:shout"], NOWHERE)


def test_any_function_is_a_transform(own: Path) -> None:
    assert _apply({"text": "a"}, "my_rl_functions:shout") == {"text": "A"}
    assert _apply({"text": "a"}, {"my_rl_functions:shout": {"times": 2}}) == {"text": "AA"}


def test_the_source_of_a_function_is_part_of_its_identity(own: Path) -> None:
    before = build_fingerprint(["my_rl_functions:shout"], NOWHERE)
    assert build_fingerprint(["my_rl_functions:shout"], NOWHERE) == before
    own.write_text(own.read_text().replace("upper", "lower"))
    assert build_fingerprint(["my_rl_functions:shout"], NOWHERE) != before
    assert build_fingerprint([{"my_rl_functions:shout": {"times": 2}}], NOWHERE) != before
