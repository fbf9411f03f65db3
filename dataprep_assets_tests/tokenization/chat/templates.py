"""Chat templates for these tests, each in the style of a family of models."""

import atexit
import json
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets_tests.tokenization.chat.tokenizers import write_chat_tokenizer
from dataprep_assets_tests.tokenization.chat.trap import CHATML

NEXT_ROLE = (
    "{% for m in messages %}{% if m.role == 'user' %}<|user|>\n{{ m.content }}"
    "{% elif m.role == 'assistant' %}<|assistant|>\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{% elif m.role == 'tool' %}<|observation|>\n{{ m.content }}"
    "{% else %}<|{{ m.role }}|>\n{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
"""A turn has no end mark: the header of the next role ends it, as in GLM."""
CHANNELS = (
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% if m.thinking %}<|s|>assistant<|c|>analysis<|m|>{{ m.thinking }}<|e|>{% endif %}"
    "{% if m.tool_calls %}<|s|>assistant to={{ m.tool_calls[0].function.name }}<|c|>commentary<|m|>"
    "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% else %}<|s|>assistant<|c|>final<|m|>{{ m.content }}{{ '<|return|>' if loop.last else '<|e|>' }}{% endif %}"
    "{% else %}<|s|>{{ m.role }}<|m|>{{ m.content }}<|e|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|s|>assistant{% endif %}"
)
"""A thought in its own channel, and three ends: of the last answer, of an earlier one, of a call; as in gpt-oss."""
FORGETFUL = CHANNELS.replace("{% if m.thinking %}", "{% if m.thinking and loop.last %}").replace(
    "{{ m.content }}<|e|>{% endif %}{% endfor %}",
    "{{ m.content | tojson if m.role == 'tool' else m.content }}<|e|>{% endif %}{% endfor %}",
)
"""The same template, which drops the thought of a call once its result follows, and writes results as JSON."""
MERGED = (
    "{% for m in messages %}{% set follows = not loop.first and loop.previtem.role == m.role %}"
    "{% if not follows %}<|im_start|>{{ m.role }}\n{% endif %}{{ m.content }}"
    "{% if loop.last or loop.nextitem.role != m.role %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Consecutive messages of one role are one turn, as in Gemma 4."""
CUT_THOUGHTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content.split('</think>')[-1] if m.role == 'assistant' else m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
"""Thoughts are removed from the history, and the prompt opens one, as in the distills of DeepSeek R1."""
ALTERNATING = (
    "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}"
    "{{ raise_exception('only user and assistant') }}{% endif %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>"
    "\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Only alternating questions and answers, as in Gemma."""
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}<think>\n"
    "{{ m.reasoning_content }}\n</think>\n\n{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}"
    "<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{{ '<think>\n\n</think>\n\n' if enable_thinking is false }}{% endif %}"
)
"""Marks that start before the thought, which the prompt has already written, as in TRL's copies for training."""
PARTS = CHATML.replace(
    "{{ m.content }}", "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}"
)
"""Content as parts, as in templates for images."""
_ROLE_TOKENS = ("<|user|>", "<|assistant|>", "<|system|>", "<|observation|>")
TOKENS = ("<|s|>", "<|m|>", "<|c|>", "<|e|>", "<|call|>", "<|return|>", *_ROLE_TOKENS)
"""The special tokens of these templates in addition to those of ChatML."""


@lru_cache
def chat_bundle_of(tokens: tuple[str, ...]) -> TokenizerBundle:
    """Return the small chat tokenizer with further special tokens."""
    folder = Path(tempfile.mkdtemp(prefix="chat-templates-"))
    atexit.register(shutil.rmtree, folder)
    write_chat_tokenizer(folder)
    definition = json.loads((folder / "tokenizer.json").read_bytes())
    last = definition["added_tokens"][-1]
    definition["added_tokens"] += [
        last | {"content": content, "id": last["id"] + number, "special": True}
        for number, content in enumerate(tokens, 1)
    ]
    (folder / "tokenizer.json").write_text(json.dumps(definition, ensure_ascii=False))
    return TokenizerBundle.load(folder, name="chat")
