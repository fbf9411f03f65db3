"""Parses JSON as in RFC 8259, including numbers of any size.

orjson is strict and fast, and refuses a number whose double would be infinite (`1e400`, an integer of 400 digits),
which the grammar allows. Such text, and no other, is parsed again with the standard library. What that accepts beyond
the grammar is still refused: NaN, Infinity, lone surrogates and nesting beyond 1,024 levels.
"""

import json
import math
import re
from typing import Any

import orjson

from dataprep_assets.bounds import STRING

_STRING_OR_NUMBER = re.compile(STRING + rb"|-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?", re.DOTALL)
_LONGEST_INTEGER = 20
"""Most characters of an integer that orjson returns as an int: `18446744073709551615`."""


def parse(data: bytes) -> Any:
    """The value of a JSON text in UTF-8; a number beyond a double's range is an infinity.

    Integers beyond 64 bits become floats, as in orjson. Raises orjson.JSONDecodeError if the text is not JSON.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as refused:
        if "infinity" not in refused.msg:
            raise
        # Each number that is too large is replaced by another one; orjson then says whether the rest is JSON.
        orjson.loads(_STRING_OR_NUMBER.sub(_within_range, data))
        try:
            return json.loads(data.decode(), parse_int=_integer)
        except RecursionError:  # Python 3.11 nests some levels less than orjson
            raise refused from None


def fault(error: orjson.JSONDecodeError) -> str:
    """What is wrong with a text that `parse` refused, without any of the text."""
    if error.doc[error.pos : error.pos + 9].lstrip("-").startswith(("NaN", "Infinity")):
        return "NaN or Infinity"
    known = {"surrogate": "a lone surrogate", "depth": "nested more than 1,024 levels deep", "end of data": "cut off"}
    return next((words for part, words in known.items() if part in error.msg), error.msg)


def _within_range(token: re.Match[bytes]) -> bytes:
    text = token[0]
    return text if text.startswith(b'"') or math.isfinite(float(text)) else b"-0e0" if text.startswith(b"-") else b"0e0"


def _integer(text: str) -> int | float:
    # measured before it is converted: Python refuses to make an int of thousands of digits
    whole = int(text) if len(text) <= _LONGEST_INTEGER else None
    return float(text) if whole is None or not -(2**63) <= whole < 2**64 else whole
