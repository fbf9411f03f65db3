"""Claims about a record on its way through the transforms: its prompt, and what an original makes of it."""

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


def _made(record: dict[str, Any], *transforms: Any, **options: Any) -> Any:
    declared = RlOptions(transforms=transforms, **options)
    return apply_transforms(record, compose_steps(transforms, (), declared.rules), declared.rules, "row 1")


@pytest.mark.parametrize("record", LACKING)
@pytest.mark.parametrize("transform", ["nemotron_rl", RESOLVING], ids=str)
def test_a_record_without_a_prompt_is_a_bad_record(record: dict[str, Any], transform: Any) -> None:
    assert _made(record, transform) == RefusedRecord("no_prompt")
    assert _made(PARAMS, transform) in (SHORT, PARAMS)


@pytest.mark.parametrize("transform", ["nemotron_rl", RESOLVING], ids=str)
def test_the_original_leaves_out_one_without_and_keeps_an_empty_one(transform: Any) -> None:
    found = [_made(record, transform, like="nemotron") for record in LACKING]
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
def test_every_transform_that_has_a_prompt_asks_for_it(transform: Any, record: dict[str, Any]) -> None:
    assert _made(record, transform) == RefusedRecord("no_prompt")


def test_a_field_that_is_no_prompt_is_left_out_under_the_name_of_its_transform() -> None:
    assert _made({"input": "a"}, "sft") == SkippedRecord("sft")
    assert _made({"a": 1}, {"select": ["b"]}) == SkippedRecord("select")


def test_records_of_a_form_of_ones_own_are_asked_for_the_prompt_that_is_named() -> None:
    own = {"task": {"question": "1+1?"}}
    assert _made({"x": 1}, "passthrough") == {"x": 1}
    assert _made(own, "passthrough", prompt="task.question") == own
    assert _made({"task": {"question": ""}}, "passthrough", prompt="task.question") == RefusedRecord("no_prompt")
    assert _made(own, RESOLVING, prompt="task.question") == own
    assert _made({"id": 1}, RESOLVING, prompt="none") == {"id": 1}
    with raises(ValidationError, "prompt"):
        RlOptions(prompt="task..question")


def test_records_without_a_placeholder_are_whole_or_their_messages() -> None:
    assert _made(PARAMS, RESOLVING) == PARAMS
    assert _made(SHORT, RESOLVING) == SHORT
    assert _made(PARAMS, RESOLVING, like="nemotron") == SHORT


def test_a_placeholder_that_cannot_be_filled_in_is_left_out_under_the_name_of_its_transform() -> None:
    lost = {"dataset": "a", "_hf_placeholder": {"row": 5, "question_template": {}}}
    assert _made(lost, RESOLVING) == _made(lost, RESOLVING, like="nemotron") == SkippedRecord("resolve_hf_placeholders")
    null = {"_hf_placeholder": None, **PARAMS}
    assert _made(null, RESOLVING) == PARAMS
    assert _made(null, RESOLVING, like="nemotron") == SkippedRecord("resolve_hf_placeholders")


def test_a_malformed_placeholder_is_left_out_or_a_bad_record() -> None:
    """It stops Nemotron; a bad record stops a run, too, unless it is to be dropped."""
    record = {"dataset": ["a"], "_hf_placeholder": {"row": 0}}
    assert _made(record, RESOLVING) == SkippedRecord("resolve_hf_placeholders")
    assert _made(record, RESOLVING, like="nemotron") == RefusedRecord("bad_placeholder")


def test_the_page_of_the_format_says_of_every_rule_what_both_presets_take() -> None:
    page = (Path(__file__).parents[4] / "docs" / "formats" / "rl-jsonl.md").read_text(encoding="utf-8")
    for name, theirs in RlOptions(like="nemotron").rules.changes.items():
        assert f"| `{name}` | `{getattr(OURS, name)}` | `{theirs}` |" in page


def test_a_key_is_what_it_was() -> None:
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
def test_a_pair_that_prefers_nothing_is_a_bad_record(chosen: Any, rejected: Any) -> None:
    pair = {"prompt": ASKED, "chosen": chosen, "rejected": rejected}
    assert _made(pair, "passthrough") == RefusedRecord("no_preference")
    assert _made(pair, "passthrough", like="nemotron") == pair


def test_a_pair_of_different_answers_is_kept() -> None:
    call = [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]
    for chosen, rejected in ((_NINE, _TEN), ("Nine.", "Ten."), (call, _NINE), (9, 0)):
        pair = {"prompt": ASKED, "chosen": chosen, "rejected": rejected}
        assert _made(pair, "passthrough") == pair
    assert _made({"chosen": ""}, "passthrough") == {"chosen": ""}
