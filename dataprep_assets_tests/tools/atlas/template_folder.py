"""A folder of chat templates, and a tokenizer for each: the tests' tokenizer with the special tokens of the template.

Entry points: `templates_in`, `own_templates`, `write_tokenizer_of`.
"""

import json
import re
from pathlib import Path

from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.chat.template import ChatTemplate
from dataprep_assets_tests.tokenization.chat import templates as test_templates
from dataprep_assets_tests.tokenization.chat.tokenizers import write_chat_tokenizer
from dataprep_assets_tests.tokenization.chat.trap import CHATML, HERMES, QWEN

_SPECIAL = re.compile(
    r"<\|[A-Za-z_]+\|>|<｜[^｜<>]+｜>|<[a-z_]+_of_turn>|\[/?[A-Z_]+\]|<\|?turn\|?>|\[gMASK\]|<sop>|<SPECIAL_\d+>"
    r"|<\|START_[A-Z_]+\|>|<\|END_[A-Z_]+\|>|<end_of_utterance>|<\|?channel\|?>|<\|?tool_call\|?>"
)
"""The spellings of special tokens in the templates of today's models."""
_EOS = {
    "phi3": "<|endoftext|>",
    "gemma": "<eos>",
    "mistral": "</s>",
    "deepseek": "<｜end▁of▁sentence｜>",
    "llama": "<|eot_id|>",
}
"""Beginning of a template's name → the token that ends an answer."""


def own_templates() -> dict[str, str]:
    """Return the texts of this project's own templates, by name."""
    return {
        "alternating": test_templates.ALTERNATING,
        "channels": test_templates.CHANNELS,
        "chatml": CHATML,
        "chatml_reasoning": ChatTemplate.load("chatml_reasoning").text,
        "cut_thoughts": test_templates.CUT_THOUGHTS,
        "hermes": HERMES,
        "marked": test_templates.MARKED,
        "next_role": test_templates.NEXT_ROLE,
        "parts": test_templates.PARTS,
        "qwen": QWEN,
    }


def templates_in(folder: Path) -> dict[str, str]:
    """Return the texts of the templates in a folder, by name."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jinja"))}


def write_tokenizer_of(name: str, text: str, folder: Path) -> TokenizerBundle:
    """Write a tokenizer with the template `text` into a folder and return it."""
    write_chat_tokenizer(folder)
    definition = json.loads((folder / "tokenizer.json").read_bytes())
    present = {token["content"]: token for token in definition["added_tokens"]}
    last = max(present.values(), key=lambda token: token["id"])
    new_contents = sorted({*_SPECIAL.findall(text), "<bos>", "<eos>", "</s>", "<|endoftext|>"} - present.keys())
    definition["added_tokens"] += [
        last | {"content": content, "id": last["id"] + number, "special": True}
        for number, content in enumerate(new_contents, 1)
    ]
    (folder / "tokenizer.json").write_text(json.dumps(definition, ensure_ascii=False), encoding="utf-8")
    config = json.loads((folder / "tokenizer_config.json").read_bytes())
    eos = next((token for beginning, token in _EOS.items() if name.startswith(beginning)), "<|endoftext|>")
    config |= {"bos_token": "<bos>", "eos_token": eos}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(text, encoding="utf-8")
    return TokenizerBundle.load(folder, name=name)
