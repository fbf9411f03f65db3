"""Names the document that a tokenizer cannot encode.

A vocabulary without an unknown token is right for texts that it covers, so it is not refused; but a library that meets
anything else raises an error that names no document.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from dataprep_assets.errors import TokenizerError
from dataprep_assets.tokenization.library_errors import EncodingError

_T = TypeVar("_T")
_R = TypeVar("_R")


def encode_or_name(
    encode: Callable[[list[_T]], _R], documents: Sequence[_T], tokenizer: str, where: Callable[[int], str]
) -> _R:
    """What `encode` gives for all documents.

    Args:
        encode: Encodes documents; raises EncodingError.
        documents: The documents.
        tokenizer: Name of the tokenizer, for the message.
        where: File and row of a document, by its index.

    Raises TokenizerError, which names the first document that cannot be encoded and quotes none.
    """
    try:
        return encode(list(documents))
    except EncodingError:
        for index, document in enumerate(documents):
            try:
                encode([document])
            except EncodingError as error:
                raise TokenizerError(
                    f"{where(index)}: the tokenizer {tokenizer} cannot encode this document: {error}. "
                    "Correct the document, or use another tokenizer"
                ) from None
        raise
