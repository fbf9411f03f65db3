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
    assert {name for name, outcome in written.items() if outcome != "written"} == {"developer"}
