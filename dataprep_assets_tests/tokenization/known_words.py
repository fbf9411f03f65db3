"""A tokenizer of a few words without an unknown token, so that it cannot encode any other text.

Entry point: `save_words`.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from dataprep_assets.tokenization.bundle import TokenizerBundle

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def save_words(folder: Path, words: Iterable[str]) -> TokenizerBundle:
    """Write a WordLevel tokenizer of these words and a few special tokens to a new folder."""
    contents = [*SPECIAL, *dict.fromkeys(words)]
    flags = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    value = {
        "version": "1.0",
        "added_tokens": [{"id": number, "content": content, **flags} for number, content in enumerate(SPECIAL)],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {
            "type": "WordLevel",
            "vocab": {content: number for number, content in enumerate(contents)},
            "unk_token": "[UNK]",
        },
    }
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text(json.dumps(value))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    return TokenizerBundle.load(folder)
