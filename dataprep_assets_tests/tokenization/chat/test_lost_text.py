"""A row with a text that its template drops is refused by feature and message, unless the loss is allowed by name."""

from typing import Any

import pytest

from dataprep_assets.tokenization.chat.capabilities import find_capabilities
from dataprep_assets.tokenization.chat.choices import ChatChoices
from dataprep_assets.tokenization.chat.messages import ConversationFields, Refusal, read_conversation
from dataprep_assets.tokenization.chat.rendering import RenderedConversation, keep_used_part
from dataprep_assets_tests.tokenization.chat.templates import (
    ALTERNATING,
    CHANNELS,
    CUT_THOUGHTS,
    MARKED,
    NEXT_ROLE,
    PARTS,
    TOKENS,
    chat_bundle_of,
)
from dataprep_assets_tests.tokenization.chat.tokenizers import conversation_renderer
from dataprep_assets_tests.tokenization.chat.trap import CHATML

TOOL = {"type": "function", "function": {"name": "look_up", "description": "Finds a word."}}
USER, SYSTEM = {"role": "user", "content": "Why?"}, {"role": "system", "content": "Be brief."}
CALL = {"type": "function", "id": "abcdefgh1", "function": {"name": "look_up", "arguments": {"word": "buoy"}}}
OTHER = {"type": "function", "id": "abcdefgh2", "function": {"name": "other", "arguments": {}}}
DEVELOPER = {"role": "developer", "content": "Be brief."}
WITHOUT_DEVELOPER = CHATML.replace("in messages %}", "in messages if m.role != 'developer' %}")
WITHOUT_LATE_SYSTEM = CHATML.replace(
    "in messages %}", "in messages %}{% if m.role != 'system' or loop.first %}"
).replace("{% endfor %}", "{% endif %}{% endfor %}")
RESULT = {"role": "tool", "content": "A float.", "tool_call_id": "abcdefgh1"}


def answer(content: str | None = "So.", **others: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **others}


def render(template: str, *messages: dict[str, Any], tools: Any = None, **choices: Any) -> Any:
    chosen = ChatChoices(roles=("system", "developer", "user", "assistant", "tool"), **choices)
    conversation = read_conversation({"messages": list(messages), "tools": tools}, ConversationFields(), chosen)
    assert not isinstance(conversation, Refusal)
    return conversation_renderer(template, chat_bundle_of(TOKENS), choices=chosen).render(conversation)


def trained(rendered: Any) -> list[list[str]]:
    assert isinstance(rendered, RenderedConversation), rendered
    return [[chunk.text for chunk in chunks if chunk.trained] for chunks in rendered.sequences]


@pytest.mark.parametrize(
    ("template", "messages", "tools", "feature", "message"),
    [
        (CHATML, [USER, answer(reasoning_content="Because.")], None, "reasoning", 1),
        (CUT_THOUGHTS.replace("<think>\n", ""), [USER, answer("<think>Because.</think>So.")], None, "reasoning", 1),
        (CHATML, [USER, answer()], [TOOL], "tools", None),
        (CHATML, [USER, answer("", tool_calls=[CALL]), RESULT, answer()], [TOOL], "calls", 1),
        (CHANNELS, [USER, answer("First.", tool_calls=[CALL]), RESULT, answer()], [TOOL], "call_text", 1),
        (CHANNELS, [USER, answer("", tool_calls=[CALL, OTHER])], [TOOL], "parallel_calls", 1),
        (WITHOUT_DEVELOPER, [DEVELOPER, USER, answer()], None, "developer", 0),
        (WITHOUT_LATE_SYSTEM, [USER, answer(), SYSTEM, USER, answer("No.")], None, "late_system", 2),
        (
            CHATML.replace("{{ m.content }}", "{{ '' if m.role == 'tool' else m.content }}"),
            [USER, answer(), RESULT, answer("No.")],
            None,
            "results",
            2,
        ),
    ],
)
def test_a_dropped_text_is_refused_by_feature_and_message(
    template: str, messages: list[dict[str, Any]], tools: Any, feature: str, message: int | None
) -> None:
    assert render(template, *messages, tools=tools) == Refusal(f"lost_in_template: {feature}", message)


def test_a_loss_allowed_by_name_is_counted() -> None:
    messages = USER, answer(reasoning_content="Because.")
    rendered = render(CHATML, *messages, allow_loss=("reasoning",))
    assert trained(rendered) == [["So.<|im_end|>"]]
    assert rendered.cuts == ("lost_in_template: reasoning",)
    assert render(CHATML, *messages, allow_loss=("tools",)) == Refusal("lost_in_template: reasoning", 1)


def test_an_answer_without_remaining_text_is_never_trained() -> None:
    messages = USER, answer("", tool_calls=[CALL]), RESULT, answer()
    rendered = render(CHATML, *messages, tools=[TOOL], allow_loss=("calls", "tools"))
    assert trained(rendered) == [["So.<|im_end|>"]]


def test_calls_without_the_declared_tools_are_used_and_counted() -> None:
    messages = USER, answer("", tool_calls=[CALL]), RESULT, answer()
    refused = render(CHANNELS, *messages, tools=[TOOL])
    assert refused == Refusal("lost_in_template: tools")
    part = keep_used_part(refused)
    assert isinstance(part, RenderedConversation)
    assert part.cuts == ("lost_in_template: tools",)
    call = '<|s|>assistant to=look_up<|c|>commentary<|m|>{"word": "buoy"}<|call|>'
    assert trained(part) == [[call.removeprefix("<|s|>assistant"), "<|c|>final<|m|>So.<|return|>"]]


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_under_any_name_is_passed_under_the_name_that_the_template_reads(key: str) -> None:
    message = answer(**{key: "Because."})
    said = "<|c|>analysis<|m|>Because.<|e|><|s|>assistant<|c|>final<|m|>So.<|return|>"
    assert trained(render(CHANNELS, USER, message)) == [[said]]
    assert trained(render(MARKED, USER, message)) == [["<think>\nBecause.\n</think>\n\nSo.<|im_end|>"]]
    assert trained(render(CUT_THOUGHTS, USER, message)) == [["Because.\n</think>\n\nSo.<|im_end|>"]]


def test_contradictory_reasoning_under_two_names_is_refused() -> None:
    message = answer(reasoning="a", thinking="b")
    assert read_conversation({"messages": [USER, message]}, ConversationFields()) == Refusal("unclear_reasoning", 1)


def test_an_answer_ended_by_the_next_role_gets_that_role_after_the_last_turn() -> None:
    rendered = render(NEXT_ROLE, USER, answer(), USER, answer("No."))
    assert trained(rendered) == [["So.<|user|>", "No.<|user|>"]]
    called = render(NEXT_ROLE, USER, answer("", tool_calls=[CALL]), tools=[TOOL], allow_loss=("tools",))
    assert trained(called)[0][0].endswith("</tool_call><|observation|>")


def test_content_is_passed_as_parts_to_a_template_that_reads_parts() -> None:
    assert trained(render(PARTS, USER, answer())) == [["So.<|im_end|>"]]


def test_a_thought_that_the_history_lacks_is_written_after_the_prompt_that_opens_it() -> None:
    messages = USER, answer("<think>\nOne.\n</think>\n\nA."), USER, answer("<think>\nTwo.\n</think>\n\nB.")
    rendered = render(CUT_THOUGHTS, *messages)
    assert trained(rendered) == [["One.\n</think>\n\nA.<|im_end|>"], ["Two.\n</think>\n\nB.<|im_end|>"]]
    assert trained(render(CUT_THOUGHTS, USER, answer())) == [["So.<|im_end|>"]]


def test_a_refused_message_is_named_with_the_words_of_the_template_and_the_rest_is_used() -> None:
    refused = render(ALTERNATING, USER, answer(), SYSTEM, USER, answer("No."))
    assert refused == Refusal("template_refused", 2)
    assert refused.words == "TemplateError: only user and assistant"
    part = keep_used_part(refused)
    assert isinstance(part, RenderedConversation)
    assert (trained(part), part.cuts) == ([["So.<|im_end|>"]], ("template_refused",))
    assert keep_used_part(render(ALTERNATING, USER, USER, answer())) == Refusal("template_refused", 1)


def test_the_table_of_a_template_says_what_it_writes_drops_and_refuses() -> None:
    table = dict(find_capabilities(conversation_renderer(ALTERNATING)).outcomes)
    assert table["inline_reasoning"] == "written"
    assert table["reasoning"] == table["tools"] == table["calls"] == "dropped"
    assert table["system"] == "TemplateError: only user and assistant"
    assert table["two_answers"] == "TemplateError: roles must alternate"
    written = dict(find_capabilities(conversation_renderer("chatml_reasoning")).outcomes)
    assert {name for name, outcome in written.items() if outcome != "written"} == {"developer", "names"}


def test_a_result_that_only_the_answer_quotes_is_lost() -> None:
    template = CHATML.replace("{{ m.content }}", "{{ '' if m.role == 'tool' else m.content }}")
    messages = USER, answer(), RESULT, answer("It is: A float.")
    assert render(template, *messages) == Refusal("lost_in_template: results", 2)


def test_a_result_that_only_a_later_question_quotes_is_lost() -> None:
    template = CHATML.replace("{{ m.content }}", "{{ '' if m.role == 'tool' else m.content }}")
    messages = USER, answer(), RESULT, answer("Yes."), {"role": "user", "content": "So: A float. Is it?"}, answer()
    assert render(template, *messages) == Refusal("lost_in_template: results", 2)
    assert trained(render(CHATML, *messages)) == [["So.<|im_end|>", "Yes.<|im_end|>", "So.<|im_end|>"]]


def test_of_two_equal_results_both_must_be_written() -> None:
    messages = USER, answer(), RESULT, RESULT, answer("Yes.")
    assert trained(render(CHATML, *messages)) == [["So.<|im_end|>", "Yes.<|im_end|>"]]
    once = CHATML.replace("{{ m.content }}", "{% if loop.first or m != loop.previtem %}{{ m.content }}{% endif %}")
    rendered = render(once, {"role": "user", "content": "A float."}, answer(), RESULT, RESULT, answer("Yes."))
    assert rendered == Refusal("lost_in_template: results", 3)


def test_a_system_text_that_is_moved_behind_the_question_is_not_lost() -> None:
    moved = (
        "{% set rest = messages if messages[0].role != 'system' else messages[1:] %}{% for m in rest %}<|im_start|>"
        "{{ m.role }}\n{{ m.content }}{{ messages[0].content if m.role == 'user' and messages[0].role == 'system' }}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    assert trained(render(moved, SYSTEM, USER, answer("Be brief. Why?"))) == [["Be brief. Why?<|im_end|>"]]


def test_a_call_that_only_the_text_beside_it_describes_is_lost() -> None:
    messages = USER, answer("I look_up the word buoy.", tool_calls=[CALL]), RESULT, answer()
    assert render(CHATML, *messages, tools=[TOOL], allow_loss=("tools",)) == Refusal("lost_in_template: calls", 1)
    assert render(CHANNELS, *messages, tools=[TOOL]) == Refusal("lost_in_template: call_text", 1)
    quoted = USER, answer("buoy", tool_calls=[CALL]), RESULT, answer()
    assert render(CHANNELS, *quoted, tools=[TOOL]) == Refusal("lost_in_template: call_text", 1)
    part = keep_used_part(render(CHANNELS, *quoted, tools=[TOOL], allow_loss=("call_text",)))
    assert isinstance(part, RenderedConversation)
    assert part.cuts == ("lost_in_template: call_text", "lost_in_template: tools")


def test_reasoning_that_only_the_answer_repeats_is_lost() -> None:
    messages = USER, answer("Because it floats.", reasoning_content="it floats")
    assert render(CHATML, *messages) == Refusal("lost_in_template: reasoning", 1)
    written = "<think>\nit floats\n</think>\n\nBecause it floats.<|im_end|>"
    assert trained(render(MARKED, *messages)) == [[written]]


def test_tools_that_only_their_calls_name_are_lost() -> None:
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"properties": {"word": {}}}}}
    messages = USER, answer("", tool_calls=[CALL]), RESULT, answer()
    assert render(CHANNELS, *messages, tools=[tool]) == Refusal("lost_in_template: tools")


SHIP = {"type": "object", "properties": {"hull": {"type": "string", "description": "Its kind.", "enum": ["sail"]}}}
BOOK = {
    "type": "function",
    "function": {
        "name": "book",
        "description": "Books a berth.",
        "parameters": {"type": "object", "properties": {"ships": {"type": "array", "items": SHIP}}},
    },
}
LISTED = "{% for t in tools or [] %}{{ t.function.name }}: {{ t.function.description }}{% endfor %}"
SHORT = f"{LISTED}{{% for t in tools or [] %}}({{{{ t.function.parameters.properties | join(', ') }}}}){{% endfor %}}"


def test_a_conversation_with_shortened_tools_is_used_and_counted() -> None:
    refused = render(SHORT + CHATML, USER, answer(), tools=[BOOK])
    assert refused == Refusal("lost_in_template: tool_parameters")
    part = keep_used_part(refused)
    assert isinstance(part, RenderedConversation)
    assert (trained(part), part.cuts) == ([["So.<|im_end|>"]], ("lost_in_template: tool_parameters",))
    for allowed in ("tool_parameters", "tools"):
        assert trained(render(SHORT + CHATML, USER, answer(), tools=[BOOK], allow_loss=(allowed,))) == trained(part)
    assert render(LISTED + CHATML, USER, answer(), tools=[BOOK]) == Refusal("lost_in_template: tools")


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"ships": {"anyOf": [SHIP, {"type": "null"}]}}},
        {"properties": {"ships": {"$ref": "#/$defs/Ship"}}, "$defs": {"Ship": SHIP}},
        {"properties": {"ships": {"type": "string", "enum": ["sail", "steam"]}}},
        {"properties": {"ships": {"type": "string", "description": "Their kinds."}}},
    ],
)
def test_parameters_at_every_depth_must_be_written(schema: dict[str, Any]) -> None:
    tool = {"type": "function", "function": {**BOOK["function"], "parameters": schema}}
    assert render(SHORT + CHATML, USER, answer(), tools=[tool]) == Refusal("lost_in_template: tool_parameters")
    whole = "{{ tools | tojson if tools }}" + CHATML
    assert trained(render(whole, USER, answer(), tools=[tool])) == [["So.<|im_end|>"]]


def test_a_default_that_looks_like_a_schema_is_no_parameter() -> None:
    schema = {"properties": {"ships": {"default": {"description": "Any."}, "examples": [{"enum": ["sail"]}]}}}
    tool = {"type": "function", "function": {**BOOK["function"], "parameters": schema}}
    assert trained(render(SHORT + CHATML, USER, answer(), tools=[tool])) == [["So.<|im_end|>"]]


def test_the_name_of_a_speaker_must_be_written() -> None:
    ann, bob = {**USER, "name": "Ann"}, {**USER, "name": "Bob"}
    assert render(CHATML, ann, bob, answer("Ann and Bob ask.")) == Refusal("lost_in_template: names", 0)
    assert trained(render(CHATML, ann, answer(), allow_loss=("names",))) == [["So.<|im_end|>"]]
    named = CHATML.replace("{{ m.role }}\n", "{{ m.role }}{{ ' ' + m.name if m.name }}\n")
    assert trained(render(named, ann, bob, answer())) == [["So.<|im_end|>"]]
    # The name of a result is its tool's name, which need not be written.
    assert trained(render(CHATML, USER, answer(), {**RESULT, "name": "look_up"}, answer())) == [["So.<|im_end|>"] * 2]


def test_the_table_of_a_template_has_shortened_tools_and_names() -> None:
    short = dict(find_capabilities(conversation_renderer(SHORT + CHATML)).outcomes)
    assert (short["tools"], short["tool_parameters"]) == ("written", "dropped")
    whole = dict(find_capabilities(conversation_renderer("{{ tools | tojson if tools }}" + CHATML)).outcomes)
    assert (whole["tools"], whole["tool_parameters"], whole["names"]) == ("written", "written", "dropped")
