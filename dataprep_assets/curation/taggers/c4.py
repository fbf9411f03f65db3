"""The heuristics of C4 (Raffel et al. 2020, section 2.2), which keeps some lines of a page.

`c4_lines` and `c4_sentences` are the numbers of lines and sentences that C4 would keep. `lorem_ipsum` and
`curly_bracket` show whether C4 would drop the page for this text. A sentence ends with `.`, `!` or `?` (or marks of
other scripts) and closing characters, before white space or the line's end, unless the setting `sentences` names a
language. The text itself is not changed.

C4 keeps lines that end with a punctuation mark and have at least 3 words. The settings `punctuation` and `min_words`
change this.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from dataprep_assets.curation.languages.word_splitter import describe_words, find_splitter
from dataprep_assets.curation.text_tagger import TextTagger

if TYPE_CHECKING:
    from dataprep_assets.curation.languages.word_splitter import WordSplitter
    from dataprep_assets.curation.text_arrays.split_texts import Flags, Numbers, SplitTexts

VERSION = "1"
_ENDS = (".", "?", "!", '"', "'")
_MAX_WORD_CHARACTERS, MIN_WORDS = 1000, 3
_CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")
_POLICIES = re.compile(r"terms of use|privacy policy|cookie policy|uses cookies|use of cookies|use cookies")
_MARKS, _CLOSERS = ".!?…。！？", "\"'”’)]"
_SENTENCE = re.compile(rf"[{_MARKS}]+[{re.escape(_CLOSERS)}]*(?=\s|$)")
_PHRASES = {"javascript": 7, "lorem ipsum": 6, "cookie": 3, "terms of use": 2, "privacy policy": 5}
"""Phrase → the position of two of its letters that are rare next to each other.

A line that contains no phrase, after ASCII letters are lowered, needs no search for the words above.
"""

_DESCRIPTIONS = {
    "c4_lines": "Number of lines that C4 would keep.",
    "c4_sentences": "Number of sentences that C4 would keep.",
    "lorem_ipsum": "Whether the text contains `lorem ipsum`.",
    "curly_bracket": "Whether the text contains a curly bracket.",
}


@cache
def _build_tables() -> "tuple[Flags, Flags, Flags]":
    from dataprep_assets.curation.text_arrays.split_texts import build_table

    return build_table("".join(_ENDS)), build_table(_MARKS), build_table(_CLOSERS)


@cache
def _build_citation_table() -> "Flags":
    """Return which ASCII characters may follow the opening bracket of a citation."""
    from dataprep_assets.curation.text_arrays.split_texts import build_table

    return build_table("]0123456789ec")


def count_sentences(line: str) -> int:
    """Count the sentences in a line, including an unfinished last one."""
    ends = [match.end() for match in _SENTENCE.finditer(line)]
    return len(ends) + (not ends or ends[-1] < len(line))


def _clean_line(full_line: str, *, punctuation: bool) -> tuple[str, bool, bool]:
    """Return a line of enough words as C4 keeps it, empty if it does not, and whether C4 would drop the page."""
    # Keep the order of the checks, because each check sees only the lines that earlier checks kept.
    if len(full_line) > _MAX_WORD_CHARACTERS and max(map(len, full_line.split())) > _MAX_WORD_CHARACTERS:
        return "", False, False
    line = _CITATION.sub("", full_line)
    if punctuation and (not line.endswith(_ENDS) or line.endswith("...")):
        return "", False, False
    lower = line.lower()
    lorem = "lorem ipsum" in lower
    if "javascript" in lower:
        return "", lorem, False
    if _POLICIES.search(lower):
        return "", lorem, "{" in line
    return line, lorem, "{" in line


@dataclass(frozen=True, kw_only=True)
class KeptLines:
    """Lines of some texts, and what C4 makes of them.

    Attributes:
        is_kept: Whether C4 keeps each line: ``(lines,)``.
        has_lorem: Whether C4 would drop the page for the text lorem ipsum in the line: ``(lines,)``.
        has_curly: Whether C4 would drop the page for a curly bracket in the line: ``(lines,)``.
        cleaned: Kept lines, by index, in which C4 removes text.
    """

    is_kept: "Flags"
    has_lorem: "Flags"
    has_curly: "Flags"
    cleaned: dict[int, str]


def find_kept_lines(split: "SplitTexts", *, punctuation: bool = True, min_words: int = MIN_WORDS) -> KeptLines:
    """Return what C4 makes of each line.

    Args:
        split: The texts.
        punctuation: Whether C4 keeps only lines that end with a punctuation mark.
        min_words: The fewest words of a line that C4 keeps.
    """
    import numpy as np

    from dataprep_assets.curation.text_arrays.split_texts import look_up

    codes, starts, ends = split.codes, split.line_starts, split.line_ends
    is_kept = (split.line_lasts - split.line_firsts >= min_words - 1) & (ends > starts)
    if punctuation:
        # A line that ends with a bracket may end with punctuation without its last citation.
        last_codes = codes[ends - 1]
        is_kept &= (look_up(_build_tables()[0], last_codes) & ~split.ellipsis_lines) | (last_codes == ord("]"))
    is_special = _find_special_lines(split) & is_kept
    is_kept &= ~is_special
    if punctuation:
        is_kept &= last_codes != ord("]")
    lorem, curly = np.zeros(len(starts), np.bool_), np.zeros(len(starts), np.bool_)
    curly[np.searchsorted(ends, np.flatnonzero(split.symbols == ord("{")))] = True
    curly &= is_kept
    cleaned: dict[int, str] = {}
    for index in np.flatnonzero(is_special).tolist():
        full_line = split.get_text(starts[index], ends[index])
        line, lorem[index], curly[index] = _clean_line(full_line, punctuation=punctuation)
        is_kept[index] = line != ""
        if line:
            cleaned[index] = line
    return KeptLines(is_kept=is_kept, has_lorem=lorem, has_curly=curly, cleaned=cleaned)


def write_kept_texts(split: "SplitTexts", kept_lines: KeptLines) -> list[str]:
    """Return the texts without the lines that C4 removes."""
    texts: list[list[str]] = [[] for _ in range(split.count)]
    for index, line in _yield_kept_lines(split, kept_lines):
        texts[split.line_texts[index]].append(line)
    return ["\n".join(lines) for lines in texts]


def _yield_kept_lines(split: "SplitTexts", kept_lines: KeptLines) -> Iterator[tuple[int, str]]:
    import numpy as np

    for index in np.flatnonzero(kept_lines.is_kept).tolist():
        yield index, kept_lines.cleaned.get(index) or split.get_text(split.line_starts[index], split.line_ends[index])


def measure_texts(
    split: "SplitTexts",
    splitter: "WordSplitter | None" = None,
    *,
    punctuation: bool = True,
    min_words: int = MIN_WORDS,
) -> Sequence[Sequence[Any]]:
    """Return the columns of some texts, in column order."""
    kept_lines = find_kept_lines(split, punctuation=punctuation, min_words=min_words)
    sentences = (
        _count_line_sentences(split, kept_lines)
        if splitter is None
        else _split_line_sentences(split, kept_lines, splitter)
    )
    return (
        split.sum_lines(kept_lines.is_kept).tolist(),
        split.sum_lines(sentences).tolist(),
        (split.sum_lines(kept_lines.has_lorem) > 0).tolist(),
        (split.sum_lines(kept_lines.has_curly) > 0).tolist(),
    )


def _count_line_sentences(split: "SplitTexts", kept_lines: KeptLines) -> "Numbers":
    """Return the number of sentences of each kept line; 0 for other lines."""
    import numpy as np

    # A sentence ends before white space, so a word contains the end of one sentence at most.
    is_end = _find_sentence_ends(split, kept_lines.is_kept)
    sentences: Numbers = np.add.reduceat(is_end, split.line_firsts, dtype=np.int64) + ~is_end[split.line_lasts]
    sentences *= kept_lines.is_kept
    for index, line in kept_lines.cleaned.items():
        sentences[index] = count_sentences(line)
    return sentences


def _split_line_sentences(split: "SplitTexts", kept_lines: KeptLines, splitter: "WordSplitter") -> "Numbers":
    """Return the number of sentences of each kept line, by the language's library; 0 for other lines."""
    import numpy as np

    sentences = np.zeros(len(kept_lines.is_kept), np.int64)
    for index, line in _yield_kept_lines(split, kept_lines):
        sentences[index] = splitter.count_sentences(line)
    return sentences


def _find_sentence_ends(split: "SplitTexts", is_kept: "Flags") -> "Flags":
    """Return which words end a sentence. Words of lines that are not kept may have any value."""
    import numpy as np

    from dataprep_assets.curation.text_arrays.split_texts import look_up

    _, mark_table, closer_table = _build_tables()
    last_codes = split.codes[split.ends - 1]
    is_end = look_up(mark_table, last_codes).copy()
    words = np.flatnonzero(look_up(closer_table, last_codes))
    words = words[is_kept[np.searchsorted(split.line_lasts, words)]]
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
    brackets = np.flatnonzero(split.symbols == ord("["))
    next_codes = split.codes[brackets + 1]
    brackets = brackets[_build_citation_table()[next_codes] | (next_codes > 127)]
    is_special[np.searchsorted(split.line_ends, brackets)] = True
    is_special[np.searchsorted(split.line_lasts, np.flatnonzero(split.sizes > _MAX_WORD_CHARACTERS))] = True
    is_special[np.searchsorted(split.line_ends, _find_phrases(split))] = True
    return is_special


def _find_phrases(split: "SplitTexts") -> "Numbers":
    """Return the positions of phrases in the joined texts."""
    import numpy as np

    # Lower only ASCII letters, because in a normalized text no other letter becomes one of a phrase. Other characters
    # may also change, because a search in a line without a phrase finds nothing.
    lower = split.symbols | np.uint8(0x20)
    flags = np.zeros(len(lower) - 1, np.bool_)
    for pair in {phrase[rare : rare + 2] for phrase, rare in _PHRASES.items()}:
        flags |= (lower[:-1] == ord(pair[0])) & (lower[1:] == ord(pair[1]))
    pairs = np.flatnonzero(flags)
    positions = [np.zeros(0, np.int64)]
    for phrase, rare in _PHRASES.items():
        starts = pairs[pairs >= rare] - rare
        for offset, character in enumerate(phrase):
            starts = starts[np.take(lower, starts + offset, mode="clip") == ord(character)]
        positions.append(starts)
    return np.concatenate(positions)


def build_tagger(*, sentences: str | None = None, punctuation: bool = True, min_words: int = MIN_WORDS) -> TextTagger:
    """Return the tagger with its settings."""
    splitter = find_splitter(sentences)
    return TextTagger.with_measures(
        columns={
            "c4_lines": "integer",
            "c4_sentences": "integer",
            "lorem_ipsum": "boolean",
            "curly_bracket": "boolean",
        },
        measure=partial(measure_texts, splitter=splitter, punctuation=punctuation, min_words=min_words),
        version=lambda: f"{VERSION}{describe_words(sentences)}",
        configure=build_tagger,
        descriptions=_DESCRIPTIONS,
    )


TAGGER = build_tagger()
