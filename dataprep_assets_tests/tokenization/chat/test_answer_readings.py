"""The first trained token is determined for each template; an ambiguous template is refused with both readings."""

import pytest

from dataprep_assets.errors import ConfigError
from dataprep_assets.tokenization.chat.answer_readings import Readings, compare_readings
from dataprep_assets.tokenization.chat.choices import NEMOTRON, OURS, ChatChoices
from dataprep_assets.tokenization.chat.messages import Conversation, Refusal
from dataprep_assets.tokenization.chat.template import ChatTemplate, compile_template
from dataprep_assets_tests.tokenization.chat.tokenizers import conversation_renderer
from dataprep_assets_tests.tokenization.chat.trap import CHATML, NO_KWARGS, TRAP

MARKED = CHATML.replace("{{ m.content }}<|im_end|>", "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}")


def readings(text: str, choices: ChatChoices = OURS) -> Readings:
    renderer = conversation_renderer(text, choices=choices)
    prompted = conversation_renderer(text, choices=choices, is_marked=False)
    return compare_readings(renderer, prompted, compile_template(ChatTemplate.load(text)), choices)


def openings(text: str, choices: ChatChoices = OURS) -> tuple[str, ...]:
    return readings(text, choices).openings


def test_an_answer_starts_after_its_prompt_with_no_text_of_the_template() -> None:
    for text in (CHATML, TRAP, MARKED, ChatTemplate.load("chatml_reasoning").text):
        assert openings(text) == ("",)


def test_text_of_a_template_between_prompt_and_answer_is_known() -> None:
    thoughtful = CHATML.replace(
        "{{ m.content }}", "{{ '<think>\n\n</think>\n\n' if m.role == 'assistant' }}{{ m.content }}"
    )
    assert openings(thoughtful) == ("<think>\n\n</think>\n\n",)


def test_a_header_that_is_trained_is_an_opening() -> None:
    assert "<|im_start|>assistant\n<think></think>" in openings(TRAP, NEMOTRON)


def test_a_prompt_that_loses_more_than_white_space_is_refused_with_both_readings() -> None:
    with pytest.raises(ConfigError) as refused:
        openings(NO_KWARGS)
    said = str(refused.value)
    assert "prompt ends in" in said
    assert "'</think>Yes, one.<|im_end|>\\n' or 'Yes, one.<|im_end|>\\n'" in said


def test_a_row_is_never_packed_by_the_wrong_reading() -> None:
    """This also holds if other rows, such as those with reasoning, determine the reading of a template."""
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    found = conversation_renderer(NO_KWARGS).render(Conversation(messages))
    assert found == Refusal("template_mismatch", 1)


def test_marks_have_priority_and_a_difference_from_the_prompt_is_reported_once() -> None:
    early = MARKED.replace("<|im_start|>{{ m.role }}\n{% generation %}", "{% generation %}<|im_start|>{{ m.role }}\n")
    found = readings(early)
    assert found.openings == ("<|im_start|>assistant\n",)
    [difference] = found.differences
    assert "'<|im_start|>assistant\\nYes, one.<|im_end|>'" in difference
    assert "'Yes, one.<|im_end|>'" in difference
    assert readings(MARKED).differences == ()


def test_a_conversation_that_a_template_refuses_determines_nothing() -> None:
    no_tools = CHATML + "{% if tools %}{{ raise_exception('no tools') }}{% endif %}"
    assert openings(no_tools) == ("",)


@pytest.mark.parametrize("rewritten", ["m.content | upper", "m.content | replace('\n', ' ')"])
def test_a_template_that_rewrites_answers_has_no_known_opening(rewritten: str) -> None:
    assert openings(CHATML.replace("m.content", rewritten)) == ()


def test_a_template_may_omit_text_next_to_a_call() -> None:
    calls_alone = CHATML.replace("{{ m.content }}", "{{ m.tool_calls | tojson if m.tool_calls else m.content }}")
    assert openings(calls_alone) == ("",)
