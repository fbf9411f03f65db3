"""Conversations that trainers and views must encode equally, and the template that both use."""

from typing import Any

TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% for tool in tools %}{{ tool | tojson + '\n' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}{% generation %}"
    "{{ m.content or '' }}{% for call in m.tool_calls or [] %}{{ '<tool_call>' + (call.function | tojson) }}"
    "{{ '</tool_call>' }}{% endfor %}{{ '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CALL = {"type": "function", "function": {"name": "tide", "arguments": {"hour": 6}}}
TOOL = {
    "type": "function",
    "function": {"name": "tide", "parameters": {"type": "object", "properties": {"hour": {"type": "integer"}}}},
}
EQUAL = 200
"""Rows that TRL and the view must encode equally; the rows after them differ for named reasons."""


def make_waves(number: int, words: int) -> str:
    return " ".join(f"wave{(number * 7 + i) % 23}" for i in range(1 + words))


def make_conversation(number: int) -> dict[str, Any]:
    """Return a conversation of one to four turns, with or without a system text, calls and results, and empty lines."""
    messages: list[dict[str, Any]] = []
    if number % 3 == 0:
        messages.append({"role": "system", "content": f"Keeper {number}, 灯台."})
    for turn in range(1 + number % 4):
        messages.append({"role": "user", "content": f"Question {number}.{turn}?\n{make_waves(number, number % 5)}"})
        if number % 5 == 0 and turn == 0:
            messages.append({"role": "assistant", "content": "", "tool_calls": [CALL]})
            messages.append({"role": "tool", "content": '{"height": 3}'})
        messages.append({"role": "assistant", "content": f"Answer\n\n{make_waves(number + turn, (number * 3) % 11)}."})
    return {"messages": messages, **({"tools": [TOOL]} if number % 5 == 0 else {})}
