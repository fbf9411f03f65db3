"""Tests of the transforms of a record: its prompt, and the result in the upstream programs."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dataprep_assets.pipelines.blend.rl.apply_transforms import RefusedRecord, SkippedRecord, apply_transforms
from dataprep_assets.pipelines.blend.rl.options import OURS, RlOptions
from dataprep_assets.pipelines.blend.rl.transforms import compose_steps
from dataprep_assets_tests.messages import raises

ASKED = [{"role": "user", "content": "hi"}]
PARAMS = {"responses_create_params": {"input": ASKED, "temperature": 1}, "id": 1}
SHORT = {"messages": ASKED}
RESOLVING = {"resolve_hf_placeholders": {"sources": {"a": {"path": "a.jsonl", "kind": "dapo"}}}}
LACKING: list[dict[str, Any]] = [
    {"id": 1},
    {"responses_create_params": None},
    {"responses_create_params": {"tools": [1]}},
    {"responses_create_params": {"input": []}},
    {"responses_create_params": {"input": " "}},
]


def _transform(record: dict[str, Any], *transforms: Any, **options: Any) -> Any:
    declared = RlOptions(transforms=transforms, **options)
    return apply_transforms(record, compose_steps(transforms, (), declared.rules), declared.rules, "row 1")


@pytest.mark.parametrize("record", LACKING)
@pytest.mark.parametrize("transform", ["nemotron_rl", RESOLVING], ids=str)
def test_a_record_without_a_prompt_is_a_bad_record(record: dict[str, Any], transform: Any) -> None:
    assert _transform(record, transform) == RefusedRecord("no_prompt")
    assert _transform(PARAMS, transform) in (SHORT, PARAMS)


@pytest.mark.parametrize("transform", ["nemotron_rl", RESOLVING], ids=str)
def test_upstream_drops_a_record_without_a_prompt_and_keeps_an_empty_one(transform: Any) -> None:
    found = [_transform(record, transform, like="nemotron") for record in LACKING]
    assert found == [SkippedRecord("prompt")] * 3 + [{"messages": []}, {"messages": " "}]


@pytest.mark.parametrize(
    ("transform", "record"),
    [
        ("openai_chat", {"messages": []}),
        ({"openai_chat": {"messages": "turns"}}, {"messages": ASKED}),
        ("sharegpt", {"messages": ASKED}),
        ("sft", {"output": "a"}),
    ],
)
def test_every_transform_with_a_prompt_requires_it(transform: Any, record: dict[str, Any]) -> None:
    assert _transform(record, transform) == RefusedRecord("no_prompt")


def test_a_field_that_is_not_a_prompt_is_dropped_under_the_name_of_its_transform() -> None:
    assert _transform({"input": "a"}, "sft") == SkippedRecord("sft")
    assert _transform({"a": 1}, {"select": ["b"]}) == SkippedRecord("select")


def test_records_of_a_custom_form_require_the_named_prompt_field() -> None:
    own = {"task": {"question": "1+1?"}}
    assert _transform({"x": 1}, "passthrough") == {"x": 1}
    assert _transform(own, "passthrough", prompt="task.question") == own
    assert _transform({"task": {"question": ""}}, "passthrough", prompt="task.question") == RefusedRecord("no_prompt")
    assert _transform(own, RESOLVING, prompt="task.question") == own
    assert _transform({"id": 1}, RESOLVING, prompt="none") == {"id": 1}
    with raises(ValidationError, "prompt"):
        RlOptions(prompt="task..question")


def test_records_without_a_placeholder_are_kept_whole_or_as_messages() -> None:
    assert _transform(PARAMS, RESOLVING) == PARAMS
    assert _transform(SHORT, RESOLVING) == SHORT
    assert _transform(PARAMS, RESOLVING, like="nemotron") == SHORT


def test_an_unresolved_placeholder_is_dropped_under_the_name_of_its_transform() -> None:
    lost = {"dataset": "a", "_hf_placeholder": {"row": 5, "question_template": {}}}
    assert (
        _transform(lost, RESOLVING)
        == _transform(lost, RESOLVING, like="nemotron")
        == SkippedRecord("resolve_hf_placeholders")
    )
    null = {"_hf_placeholder": None, **PARAMS}
    assert _transform(null, RESOLVING) == PARAMS
    assert _transform(null, RESOLVING, like="nemotron") == SkippedRecord("resolve_hf_placeholders")


def test_a_malformed_placeholder_is_dropped_or_a_bad_record() -> None:
    """It stops Nemotron; a bad record also stops a run, unless it is declared to be dropped."""
    record = {"dataset": ["a"], "_hf_placeholder": {"row": 0}}
    assert _transform(record, RESOLVING) == SkippedRecord("resolve_hf_placeholders")
    assert _transform(record, RESOLVING, like="nemotron") == RefusedRecord("bad_placeholder")


def test_the_page_of_the_component_lists_both_presets_of_every_rule() -> None:
    page = (Path(__file__).parents[4] / "docs" / "components" / "training-blend.md").read_text(encoding="utf-8")
    section = page.partition("\n### `rl.like`\n")[2].partition("\n#")[0]
    for name, theirs in RlOptions(like="nemotron").rules.changes.items():
        assert f"| `{name}` | `{getattr(OURS, name)}` | `{theirs}` | " in section


def test_the_key_is_unchanged_since_earlier_versions() -> None:
    assert RlOptions().identity == RlOptions(like="ours").identity == {"compression": "none"}
    assert RlOptions(like="nemotron", prompt="a.b").identity == {
        "compression": "none",
        "other_records": "messages",
        "answers": "parsed",
        "params": "replaced",
        "null_placeholder": "unresolved",
        "other_templates": "ignored",
        "without_prompt": "left_out",
        "null_affix": "printed",
        "malformed": "bad_record",
        "boolean_row": "number",
        "column_nulls": "kept",
        "prompt": "a.b",
    }


_NINE, _TEN = [{"role": "assistant", "content": "Nine."}], [{"role": "assistant", "content": "Ten."}]


@pytest.mark.parametrize(
    ("chosen", "rejected"),
    [
        (_NINE, _NINE),
        ("Nine.", "Nine."),
        ([], _NINE),
        (_NINE, None),
        (_NINE, " "),
        (_NINE, [{"role": "assistant", "content": ""}]),
        ([{"role": "assistant", "content": [{"type": "text", "content": ""}]}], _NINE),
    ],
)
def test_a_pair_without_a_preference_is_a_bad_record(chosen: Any, rejected: Any) -> None:
    pair = {"prompt": ASKED, "chosen": chosen, "rejected": rejected}
    assert _transform(pair, "passthrough") == RefusedRecord("no_preference")
    assert _transform(pair, "passthrough", like="nemotron") == pair


def test_a_pair_of_different_answers_is_kept() -> None:
    call = [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]
    for chosen, rejected in ((_NINE, _TEN), ("Nine.", "Ten."), (call, _NINE), (9, 0)):
        pair = {"prompt": ASKED, "chosen": chosen, "rejected": rejected}
        assert _transform(pair, "passthrough") == pair
    assert _transform({"chosen": ""}, "passthrough") == {"chosen": ""}
