"""The tokens of a note's header and text, encoded separately or together.

If they are encoded together, a token may span the end of the header and the beginning of the text. Then the header is
the common prefix of both encodings, and the rest is the body: a chunk that repeats the header repeats none of the text.

Entry points: `encoded_text`, `header_and_body`.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Encode = Literal["apart", "together"]
Ids = NDArray[np.uint32]


def encoded_text(header: str, text: str, encode: Encode) -> str:
    """The text to tokenize in addition to the header, which is always tokenized."""
    return text if encode == "apart" else header + text


def header_and_body(header: Ids, encoded: Ids, encode: Encode) -> tuple[Ids, Ids]:
    """The tokens of the header and those after it.

    ``header`` is the ids of the header alone, ``encoded`` those of `encoded_text`; one-dimensional.
    """
    if encode == "apart":
        return header, encoded
    size = min(header.size, encoded.size)
    differ = np.flatnonzero(header[:size] != encoded[:size])
    boundary = int(differ[0]) if differ.size else size
    return encoded[:boundary], encoded[boundary:]
