"""Use transformers as trainers do to tokenize and render conversations; its tokenizers import PyTorch if installed."""

from pathlib import Path
from typing import Any

from dataprep_assets_tests.readers.families import TRANSFORMERS
from dataprep_assets_tests.readers.process import in_process_of


@in_process_of(TRANSFORMERS)
def tokenizer_facts(bundle: Path) -> dict[str, Any]:
    """Return `length`, `eos_token` and `pad_token` of the `AutoTokenizer` of a folder."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(bundle)
    return {"length": len(tokenizer), "eos_token": tokenizer.eos_token, "pad_token": tokenizer.pad_token}


@in_process_of(TRANSFORMERS)
def token_ids(bundle: Path, tokens: list[str]) -> list[int]:
    """Return the ids of tokens by the `AutoTokenizer` of a folder."""
    from transformers import AutoTokenizer

    ids: list[int] = AutoTokenizer.from_pretrained(bundle).convert_tokens_to_ids(tokens)
    return ids


@in_process_of(TRANSFORMERS)
def encoded(bundle: Path, texts: list[str]) -> list[list[int]]:
    """Return the `input_ids` of texts by the `AutoTokenizer` of a folder."""
    from transformers import AutoTokenizer

    ids: list[list[int]] = AutoTokenizer.from_pretrained(bundle)(texts)["input_ids"]
    return ids


@in_process_of(TRANSFORMERS)
def rendered(text: str, conversation: dict[str, Any], **variables: Any) -> str:
    """Return a conversation (`messages` and optionally `tools`) rendered by the chat template text, with these
    variables.
    """
    from transformers.utils.chat_template_utils import render_jinja_template

    found = render_jinja_template(
        [conversation["messages"]], tools=conversation.get("tools"), chat_template=text, **variables
    )
    texts = found[0] if isinstance(found, tuple) else found
    return str(texts[0])


@in_process_of(TRANSFORMERS)
def applied(folder: Path, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
    """Return a conversation rendered by the chat template that the tokenizer of a folder selects."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder))
    return str(tokenizer.apply_chat_template(messages, tools=tools, tokenize=False))


@in_process_of(TRANSFORMERS)
def older_tokenizer(folder: Path, tokens: list[str]) -> tuple[dict[str, str], list[int]]:
    """Return the named tokens of a folder's tokenizer, and the ids of some tokens."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder))
    named = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    return named, [tokenizer.convert_tokens_to_ids(token) for token in tokens]


@in_process_of(TRANSFORMERS)
def rendered_rows(text: str, rows: list[dict[str, Any]], **variables: Any) -> list[str | None]:
    """Return conversations rendered by the chat template text; None for those that it refuses."""
    from transformers.utils.chat_template_utils import render_jinja_template

    def render(row: dict[str, Any]) -> str | None:
        try:
            found = render_jinja_template([row["messages"]], tools=row.get("tools"), chat_template=text, **variables)
        except Exception:  # the template, or Python code in it, may raise any error
            return None
        return str((found[0] if isinstance(found, tuple) else found)[0])

    return [render(row) for row in rows]
