"""JSON parsing as in RFC 8259, including numbers of any size.

orjson is strict and fast. However, it refuses a number whose double would be infinite (`1e400`, an integer of 400
digits), although the grammar allows it. It also converts an integer beyond 64 bits to a double. Only text that may
contain such numbers is parsed again with the standard library. Constructs that the standard library accepts beyond the
grammar are still refused: NaN, Infinity, lone surrogates and nesting beyond 1,024 levels.
"""

import json
import math
import re
from typing import Any

import orjson

from dataprep_assets.bounds import STRING

_STRING_OR_NUMBER = re.compile(STRING + rb"|-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?", re.DOTALL)
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_LONGER = (b"-" + b"0" * 19, b"0" * 20)
"""Beginnings of an integer beyond 64 bits after all digits became zeros: -2^63 has 19 digits, 2^64 has 20."""


def parse_value(data: bytes) -> Any:
    """Return the value of a JSON text in UTF-8. A number beyond a double's range becomes an infinity.

    Raises orjson.JSONDecodeError if the text is not JSON.
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        # orjson's message contains "infinity" for a number whose double would be infinite.
        if "infinity" not in error.msg:
            raise
        # Replace each number that is too large with a small one, so that orjson checks the rest of the text.
        orjson.loads(_STRING_OR_NUMBER.sub(_clamp_number, data))
    else:
        if not has_long_integers(data):
            return value
    try:
        return json.loads(data.decode(), parse_int=_parse_integer)
    except RecursionError:  # Python 3.11 allows slightly fewer levels than orjson
        raise orjson.JSONDecodeError("nested too deeply", "", 0) from None


def has_long_integers(data: bytes) -> bool:
    """Return whether a JSON text may contain an integer beyond 64 bits, which orjson converts to a double."""
    # Do not parse, because this check runs for every value. Digits in a string or a fraction may also match; the value
    # is then parsed a second time unnecessarily.
    noughts = data.translate(_DIGITS)
    return any(long in noughts for long in _LONGER)


def describe_fault(error: orjson.JSONDecodeError) -> str:
    """Return the defect of a text that `parse_value` refused, without any of the text."""
    if error.doc[error.pos : error.pos + 1] == "\0":
        return "a NUL byte, as in holes left by crashed writers"
    if error.doc[error.pos : error.pos + 9].lstrip("-").startswith(("NaN", "Infinity")):
        return "NaN or Infinity"
    reasons = {"surrogate": "a lone surrogate", "depth": "nested more than 1,024 levels deep", "end of data": "cut off"}
    return next((words for part, words in reasons.items() if part in error.msg), error.msg)


def _clamp_number(token: re.Match[bytes]) -> bytes:
    text = token[0]
    return text if text.startswith(b'"') or math.isfinite(float(text)) else b"-0e0" if text.startswith(b"-") else b"0e0"


def _parse_integer(text: str) -> int | float:
    # Compute the float first, because Python refuses to convert thousands of digits to an int.
    return int(text) if math.isfinite(number := float(text)) else number
