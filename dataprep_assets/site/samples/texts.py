"""Texts of documents as HTML: hostile markup is escaped, and characters that a browser would hide or obey are visible.

Entry points: `show_text`, `show_tokens`, `cut_text`.
"""

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

from markupsafe import Markup, escape

from dataprep_assets.errors import count_of
from dataprep_assets.site.samples.facts import MAX_CHARACTERS

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Control, format and separator characters, and lone surrogates; not tabs and line feeds."""
_NAMES = {"\x00": "NUL", "\r": "CR", "\x1b": "ESC", "\x7f": "DEL", "\x0b": "VT", "\x0c": "FF", "\x08": "BS"}


def show_text(text: str) -> Markup:
    """Return a text as HTML, with a visible name for each hidden character."""
    if _HIDDEN.search(text) is None:
        return escape(text)
    pieces, start = [], 0
    for match in _HIDDEN.finditer(text):
        pieces += [escape(text[start : match.start()]), _show_hidden(match[0])]
        start = match.end()
    return Markup("").join([*pieces, escape(text[start:])])


@lru_cache(maxsize=256)
def _show_hidden(character: str) -> Markup:
    code = f"U+{ord(character):04X}"
    title = f"{code} {unicodedata.name(character, '')}".strip()
    return Markup('<span class="hidden-character" title="{}">{}</span>').format(title, _NAMES.get(character, code))


def show_tokens(tokens: Iterable[tuple[str, bool]]) -> Markup:
    """Return tokens as HTML: a `mark` for each token in the loss, a `span` for each other token."""
    # Join plain strings, because `Markup` would escape each of these escaped texts again.
    return Markup("".join([_show_token(text, is_trained) for text, is_trained in tokens]))


@lru_cache(maxsize=1 << 15)
def _show_token(text: str, is_trained: bool) -> str:
    name = "mark" if is_trained else "span"
    return f"<{name}>{show_text(text)}</{name}>"


def cut_text(text: str, limit: int = MAX_CHARACTERS) -> tuple[str, str]:
    """Return the beginning of a text, and a phrase with the number of omitted characters; empty if there are none."""
    omitted = len(text) - limit
    return (text[:limit], f"{count_of(omitted, 'more character')}") if omitted > 0 else (text, "")
