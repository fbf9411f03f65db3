"""transformers, as trainers tokenize and render conversations; its tokenizers import PyTorch where there is one."""

from pathlib import Path
from typing import Any

from dataprep_assets_tests.readers.families import TRANSFORMERS
from dataprep_assets_tests.readers.process import in_process_of


@in_process_of(TRANSFORMERS)
def tokenizer_facts(bundle: Path) -> dict[str, Any]:
    """`length`, `eos_token` and `pad_token` of the `AutoTokenizer` of a folder."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(bundle)
    return {"length": len(tokenizer), "eos_token": tokenizer.eos_token, "pad_token": tokenizer.pad_token}


@in_process_of(TRANSFORMERS)
def token_ids(bundle: Path, tokens: list[str]) -> list[int]:
    """The ids of tokens by the `AutoTokenizer` of a folder."""
    from transformers import AutoTokenizer

    ids: list[int] = AutoTokenizer.from_pretrained(bundle).convert_tokens_to_ids(tokens)
    return ids


@in_process_of(TRANSFORMERS)
def encoded(bundle: Path, texts: list[str]) -> list[list[int]]:
    """The `input_ids` of texts by the `AutoTokenizer` of a folder."""
    from transformers import AutoTokenizer

    ids: list[list[int]] = AutoTokenizer.from_pretrained(bundle)(texts)["input_ids"]
    return ids


@in_process_of(TRANSFORMERS)
def rendered(text: str, conversation: dict[str, Any], **variables: Any) -> str:
    """A conversation (`messages` and perhaps `tools`) by the chat template of that text, with these variables."""
    from transformers.utils.chat_template_utils import render_jinja_template

    found = render_jinja_template(
        [conversation["messages"]], tools=conversation.get("tools"), chat_template=text, **variables
    )
    texts = found[0] if isinstance(found, tuple) else found
    return str(texts[0])
