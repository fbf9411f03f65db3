"""The heuristics of C4 (Raffel et al. 2020, section 2.2), which keeps some lines of a page.

`c4_lines` and `c4_sentences` are the numbers of lines and sentences that C4 would keep. `lorem_ipsum` and
`curly_bracket` show whether C4 would drop the page for this text. A sentence ends with `.`, `!` or `?` (or marks of
other scripts) and closing characters, before white space or the line's end. The text itself is not changed.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from dataprep_assets.curation.text_tagger import TextTagger

if TYPE_CHECKING:
    from dataprep_assets.curation.split_texts import Flags, SplitTexts

_ENDS = (".", "?", "!", '"', "'")
_MAX_WORD_CHARACTERS, _MIN_WORDS = 1000, 3
_CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")
_POLICIES = re.compile(r"terms of use|privacy policy|cookie policy|uses cookies|use of cookies|use cookies")
_MARKS, _CLOSERS = ".!?…。！？", "\"'”’)]"
_SENTENCE = re.compile(rf"[{_MARKS}]+[{re.escape(_CLOSERS)}]*(?=\s|$)")
_PHRASES = ("javascript", "lorem ipsum", "cookie", "terms of use", "privacy policy")
"""A line that contains no phrase, after ASCII letters are lowered, needs no search for the words above."""


@cache
def _build_tables() -> "tuple[Flags, Flags, Flags]":
    from dataprep_assets.curation.split_texts import build_table

    return build_table("".join(_ENDS)), build_table(_MARKS), build_table(_CLOSERS)


@cache
def _build_citation_table() -> "Flags":
    """Return which ASCII characters may follow the opening bracket of a citation."""
    from dataprep_assets.curation.split_texts import build_table

    return build_table("]0123456789ec")


def count_sentences(line: str) -> int:
    """Count the sentences in a line, including an unfinished last one."""
    ends = [match.end() for match in _SENTENCE.finditer(line)]
    return len(ends) + (not ends or ends[-1] < len(line))


def _measure_line(full_line: str) -> tuple[bool, int, bool, bool]:
    """Return whether C4 keeps a line of enough words, its sentences, and whether it would drop the page."""
    # Keep the order of the checks, because each check sees only the lines that earlier checks kept.
    if len(full_line) > _MAX_WORD_CHARACTERS and max(map(len, full_line.split())) > _MAX_WORD_CHARACTERS:
        return False, 0, False, False
    line = _CITATION.sub("", full_line)
    if not line.endswith(_ENDS) or line.endswith("..."):
        return False, 0, False, False
    lower = line.lower()
    lorem = "lorem ipsum" in lower
    if "javascript" in lower:
        return False, 0, lorem, False
    if _POLICIES.search(lower):
        return False, 0, lorem, "{" in line
    return True, count_sentences(line), lorem, "{" in line


def measure_texts(split: "SplitTexts") -> Sequence[Sequence[Any]]:
    """Return the columns of some texts, in column order."""
    import numpy as np

    codes, starts, ends = split.codes, split.line_starts, split.line_ends
    has_enough_words = split.line_lasts - split.line_firsts >= _MIN_WORDS - 1
    is_special = _find_special_lines(split) & has_enough_words
    is_kept = has_enough_words & ~is_special & _build_tables()[0][codes[ends - 1]] & ~split.ellipsis_lines
    lorem, curly = np.zeros(len(starts), np.bool_), np.zeros(len(starts), np.bool_)
    curly[np.searchsorted(ends, np.flatnonzero(codes == ord("{")))] = True
    curly &= is_kept
    # A sentence ends before white space, so a word contains the end of one sentence at most.
    is_end = _find_sentence_ends(split, is_kept)
    sentences = np.add.reduceat(is_end, split.line_firsts, dtype=np.int64) + ~is_end[split.line_lasts]
    sentences *= is_kept
    for index in np.flatnonzero(is_special).tolist():
        line = split.get_text(starts[index], ends[index])
        is_kept[index], sentences[index], lorem[index], curly[index] = _measure_line(line)
    return (
        split.sum_lines(is_kept).tolist(),
        split.sum_lines(sentences).tolist(),
        (split.sum_lines(lorem) > 0).tolist(),
        (split.sum_lines(curly) > 0).tolist(),
    )


def _find_sentence_ends(split: "SplitTexts", is_kept: "Flags") -> "Flags":
    """Return which words end a sentence. Words of lines that are not kept may have any value."""
    import numpy as np

    _, mark_table, closer_table = _build_tables()
    last_codes = split.codes[split.ends - 1]
    is_end = mark_table[last_codes]
    has_closer = closer_table[last_codes] & np.repeat(is_kept, split.line_lasts - split.line_firsts + 1)
    words = np.flatnonzero(has_closer)
    # Most words end with a single closing character, and then the character before it decides.
    previous_codes = split.codes[split.ends[words] - 2]
    is_end[words] = mark_table[previous_codes]
    for index in words[closer_table[previous_codes]].tolist():
        word = split.get_text(split.starts[index], split.ends[index])
        is_end[index] = word.rstrip(_CLOSERS).endswith(tuple(_MARKS))
    return is_end


def _find_special_lines(split: "SplitTexts") -> "Flags":
    """Return which lines need a search, because they may contain a citation, a phrase or a word that is too long."""
    import numpy as np

    is_special = np.zeros(len(split.line_lasts), np.bool_)
    brackets = np.flatnonzero(split.codes == ord("["))
    next_codes = split.codes[brackets + 1]
    brackets = brackets[_build_citation_table()[next_codes] | (next_codes > 127)]
    is_special[np.searchsorted(split.line_ends, brackets)] = True
    is_special[np.searchsorted(split.line_lasts, np.flatnonzero(split.sizes > _MAX_WORD_CHARACTERS))] = True
    # Lower only ASCII letters, because in a normalized text no other letter becomes one of a phrase. Replace all other
    # characters by a byte, so that the position of a byte is the position of its character.
    lower = np.minimum(split.codes, 255).astype(np.uint8).tobytes().lower()
    positions = [position for phrase in _PHRASES for position in _find_all(lower, phrase.encode())]
    is_special[np.searchsorted(split.line_ends, positions)] = True
    return is_special


def _find_all(content: bytes, phrase: bytes) -> Iterator[int]:
    position = content.find(phrase)
    while position >= 0:
        yield position
        position = content.find(phrase, position + 1)


TAGGER = TextTagger.with_measures(
    columns={
        "c4_lines": "integer",
        "c4_sentences": "integer",
        "lorem_ipsum": "boolean",
        "curly_bracket": "boolean",
    },
    measure=measure_texts,
    version=lambda: "1",
)
