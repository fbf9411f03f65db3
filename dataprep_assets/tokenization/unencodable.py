"""Names the document that a tokenizer cannot encode.

A vocabulary without an unknown token is right for texts that it covers, so it is not refused; but a library that meets
anything else raises an error that names no document.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from dataprep_assets.errors import Position, TokenizerError
from dataprep_assets.tokenization.library_errors import EncodingError

_T = TypeVar("_T")
_R = TypeVar("_R")


def row_of(file: str, row: int) -> tuple[str, Position]:
    """Where a document is that is a row of a file, for `encode_or_name`."""
    return f"{file}: row {row}", {"file": file, "row": row}


def encode_or_name(
    encode: Callable[[list[_T]], _R],
    documents: Sequence[_T],
    tokenizer: str,
    where: Callable[[int], tuple[str, Position]],
) -> _R:
    """What `encode` gives for all documents.

    Args:
        encode: Encodes documents; raises EncodingError.
        documents: The documents.
        tokenizer: Name of the tokenizer, for the message.
        where: Where a document is, by its index: in words and as a position.

    Raises TokenizerError, which names the first document that cannot be encoded and quotes none.
    """
    try:
        return encode(list(documents))
    except EncodingError:
        for index, document in enumerate(documents):
            try:
                encode([document])
            except EncodingError as error:
                words, position = where(index)
                raise TokenizerError(
                    f"{words}: the tokenizer {tokenizer} cannot encode this document: {error}. "
                    "Correct the document, or use another tokenizer",
                    **position,
                ) from None
        raise
