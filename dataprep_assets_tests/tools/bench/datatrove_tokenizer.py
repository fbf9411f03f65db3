"""Run datatrove's tokenizer step with literal special tokens as ordinary text, a setting for which it has no
argument.
"""

from functools import cached_property
from typing import Any

from datatrove.pipeline.tokens import DocumentTokenizer


class LiteralDocumentTokenizer(DocumentTokenizer):
    """A `DocumentTokenizer` that only sets the tokenizer's `encode_special_tokens`, which costs nothing."""

    @cached_property
    def tokenizer(self) -> Any:
        """The step's own tokenizer, with the setting."""
        found = DocumentTokenizer.tokenizer.func(self)
        found.encode_special_tokens = True
        return found
