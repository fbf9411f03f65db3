"""Tokens of a note's header and text, encoded separately or together.

With joint encoding, a token may span the end of the header and the beginning of the text. The header is then the common
prefix of both encodings, and the body is the rest. Therefore a chunk that repeats the header repeats no text.

Entry points: `join_for_encoding`, `split_header_and_body`.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Encode = Literal["apart", "together"]
Ids = NDArray[np.uint32]


def join_for_encoding(header: str, text: str, encode: Encode) -> str:
    """Return the text to tokenize in addition to the header, which is always tokenized."""
    return text if encode == "apart" else header + text


def split_header_and_body(header: Ids, encoded: Ids, encode: Encode) -> tuple[Ids, Ids]:
    """Split a note's tokens into header and body.

    ``header`` contains the ids of only the header, and ``encoded`` the ids of the joined text (`join_for_encoding`).
    Both are one-dimensional.
    """
    if encode == "apart":
        return header, encoded
    size = min(header.size, encoded.size)
    differ = np.flatnonzero(header[:size] != encoded[:size])
    boundary = int(differ[0]) if differ.size else size
    return encoded[:boundary], encoded[boundary:]
