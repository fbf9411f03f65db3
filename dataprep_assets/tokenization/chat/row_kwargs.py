"""The template variables of a row, in the key `chat_template_kwargs` that TRL also uses.

They are variables such as `enable_thinking` or `documents`, which transformers' `apply_chat_template` accepts in
addition to the messages. Its own arguments are not allowed as variables of a row.

Entry points: `read_kwargs`, `find_unread_variables`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from dataprep_assets.tokenization.chat.row_forms import parse_json
from dataprep_assets.tokenization.chat.template import ALL_KWARGS, Renderer

_ARGUMENTS = frozenset(
    {
        *("conversation", "messages", "tools", "chat_template", "add_generation_prompt", "continue_final_message"),
        *("tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs"),
        *("return_assistant_tokens_mask", "processor_kwargs", "sanitize_control_tokens", ALL_KWARGS),
    }
)
"""Arguments of `apply_chat_template` that are not allowed as variables of a row."""


def read_kwargs(value: Any) -> dict[str, Any] | None:
    """Return the variables of a row; an empty dict if it has none, None if they are invalid.

    Like tools, they may be JSON text. Null values are ignored, because Parquet fills the keys of other rows with null.
    """
    if isinstance(value, str):
        try:
            value = parse_json(value) if value.strip() else None
        except ValueError:
            return None
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) and name.isidentifier() for name in value):
        return None
    kwargs = {name: variable for name, variable in value.items() if variable is not None}
    documents = kwargs.get("documents", [])
    is_valid = (
        _ARGUMENTS.isdisjoint(kwargs)
        and isinstance(kwargs.get("enable_thinking", True), bool)
        and isinstance(documents, list)
        and all(isinstance(document, dict) for document in documents)
    )
    return kwargs if is_valid else None


def find_unread_variables(kwargs: Mapping[str, Any], renderer: Renderer) -> Iterator[str]:
    """Yield the names of variables with texts that the template does not read.

    Unread booleans and numbers are accepted, because rows may be written for several models.
    """
    for name, value in kwargs.items():
        if isinstance(value, str | list | dict) and value and not renderer.reads(name):
            yield name
