"""datatrove's tokenizer step with literal special tokens as ordinary text: the one setting it has no argument for."""

from functools import cached_property
from typing import Any

from datatrove.pipeline.tokens import DocumentTokenizer


class LiteralDocumentTokenizer(DocumentTokenizer):
    """`DocumentTokenizer`; only the tokenizer's `encode_special_tokens` is set, which costs nothing."""

    @cached_property
    def tokenizer(self) -> Any:
        """The step's own tokenizer, with the setting."""
        found = DocumentTokenizer.tokenizer.func(self)
        found.encode_special_tokens = True
        return found
