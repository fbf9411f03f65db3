"""The text that the built-in taggers measure: what was written, without how it was typed.

Line ends, white space, invisible characters and the Unicode form depend on the program that wrote a file. So no
decision about a document may depend on them. A normalized text has:

- Unicode's composed form (NFC);
- `\\n` as its only line end;
- one blank between the words of a line, and none at its ends;
- at most one empty line in a row, and none at the ends of the text;
- no byte order mark and no other character that only directs how text is set.

The zero-width joiner and non-joiner stay, because they are spelling in Persian, in Indic scripts and in emoji.
"""

import re
import unicodedata

VERSION = f"text 1, Unicode {unicodedata.unidata_version}"
"""Part of the version of every tagger that measures normalized texts."""

_DIRECTIONS = re.compile("[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
"""Soft hyphen, marks of direction, zero-width space, word joiner, byte order mark."""
_EMPTY_LINES = re.compile(r"\n{3,}")


def normalized(text: str) -> str:
    """Return the text in its normalized form; a text in this form is returned unchanged."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", _DIRECTIONS.sub("", text))
    lines = "\n".join([" ".join(line.split()) for line in text.splitlines()])
    return _EMPTY_LINES.sub("\n\n", lines).strip()
