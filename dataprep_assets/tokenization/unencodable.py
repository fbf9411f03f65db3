"""Names the document that a tokenizer cannot encode.

A vocabulary without an unknown token is right for texts that it covers, so it is not refused; but a library that meets
anything else raises an error that names no document.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from dataprep_assets.errors import DataprepError, TokenizerError
from dataprep_assets.sentences import typed
from dataprep_assets.tokenization.panics import PanicError

_T = TypeVar("_T")
_R = TypeVar("_R")


def encode_or_name(
    encode: Callable[[list[_T]], _R], documents: Sequence[_T], tokenizer: str, where: Callable[[int], str]
) -> _R:
    """What `encode` gives for all documents.

    Args:
        encode: Encodes documents; raises what the library raises.
        documents: The documents.
        tokenizer: Name of the tokenizer, for the message.
        where: File and row of a document, by its index.

    Raises TokenizerError, which names the first document that cannot be encoded and quotes none.
    """
    try:
        return encode(list(documents))
    except (PanicError, Exception) as error:
        if isinstance(error, DataprepError) and not isinstance(error, PanicError):
            raise
        for index, document in enumerate(documents):
            if (why := _reason(encode, document)) is not None:
                raise TokenizerError(
                    f"{typed(where(index))}: the tokenizer {tokenizer} cannot encode this document: {why}. "
                    "Correct the document, or use another tokenizer"
                ) from None
        raise


def _reason(encode: Callable[[list[_T]], _R], document: _T) -> str | None:
    try:
        encode([document])
    except PanicError as error:
        return str(error)
    except Exception as error:  # the libraries raise bare Exception
        if isinstance(error, DataprepError):
            raise
        # no library's words: they may quote the document
        without = "unk" in str(error).casefold()
        return "it has a part that is not in the vocabulary, which has no unknown token" if without else "it raises"
    return None
