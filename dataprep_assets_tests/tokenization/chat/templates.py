"""Chat templates made for these tests, each in the style of a family of models."""

from dataprep_assets_tests.tokenization.chat.trap import CHATML

NEXT_ROLE = (
    "{% for m in messages %}{% if m.role == 'user' %}<|user|>\n{{ m.content }}"
    "{% elif m.role == 'assistant' %}<|assistant|>\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{% elif m.role == 'tool' %}<|observation|>\n{{ m.content }}"
    "{% else %}<|{{ m.role }}|>\n{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
"""No end of a turn: the header of the next role ends it, as in GLM."""
CHANNELS = (
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% if m.thinking %}<|s|>assistant<|c|>analysis<|m|>{{ m.thinking }}<|e|>{% endif %}"
    "{% if m.tool_calls %}<|s|>assistant to={{ m.tool_calls[0].function.name }}<|c|>commentary<|m|>"
    "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% else %}<|s|>assistant<|c|>final<|m|>{{ m.content }}{{ '<|return|>' if loop.last else '<|e|>' }}{% endif %}"
    "{% else %}<|s|>{{ m.role }}<|m|>{{ m.content }}<|e|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|s|>assistant{% endif %}"
)
"""A thought in a channel of its own; three ends: of the last answer, an earlier one, a call; as in gpt-oss."""
CUT_THOUGHTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content.split('</think>')[-1] if m.role == 'assistant' else m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
"""Thoughts are cut out of the history, and the prompt opens one, as in the distills of DeepSeek R1."""
ALTERNATING = (
    "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}"
    "{{ raise_exception('only user and assistant') }}{% endif %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>"
    "\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Questions and answers in turn, and no other role, as in Gemma."""
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}<think>\n"
    "{{ m.reasoning_content }}\n</think>\n\n{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}"
    "<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{{ '<think>\n\n</think>\n\n' if enable_thinking is false }}{% endif %}"
)
"""Marks that begin before the thought, which the prompt has already written, as in TRL's copies for training."""
PARTS = CHATML.replace(
    "{{ m.content }}", "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}"
)
"""Content as parts, as in templates for pictures."""
