"""The heuristics of DCLM-Baseline (Li et al. 2024): RefinedWeb's, as DCLM's own code measures them.

They differ from Gopher's. Every occurrence of a repeated line or n-gram counts, including the first one. N-grams
consist of words without punctuation. Symbols count in the mean length of words, and each occurrence of a stop word
counts. `dclm_removed_words` is the share of words in lines and phrases that DCLM removes. The text itself is not
changed. A text without words or lines has null shares.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from dataprep_assets.curation.taggers.gopher import STOP_WORDS
from dataprep_assets.curation.taggers.repetition import REPEATED, TOP
from dataprep_assets.curation.text_tagger import TextTagger

_WORD = re.compile(r"[^\W_](?:\w|(?<=[^\W\d_])[.:'’·](?=[^\W\d_])|(?<=\d)[.,;'](?=\d))*")
"""A word without punctuation, close to Unicode's rules for word boundaries in text with spaces."""
_SYMBOLS = ("#", "...", ". . .", "…")
_BULLETS, _ELLIPSES = ("●", "•", "*", "-"), ("...", ". . .", "…")
_COUNTER = re.compile(
    r"\W*\d[\d.,]*[kmb]?\s+(?:(?:up|down)votes|(?:re)?tweets|(?:re)?posts|likes|shares|comments|quotes|bookmarks"
    r"|downloads|views|followers)\W*"
)
_PHRASES = re.compile(r"\s?items in cart|\s?read more...$|^sign-in\s?", re.IGNORECASE)
_PHRASE_WORDS, _LINE_WORDS = 10, 2
"""The most words of a line in which DCLM looks for phrases, and the fewest words of a line that it keeps."""

_DESCRIPTIONS = {
    "dclm_words": "Number of words that begin with a letter or a digit.",
    "dclm_mean_word_length": "Mean length of all words, in characters.",
    "dclm_symbols_per_word": "Number of `#` and ellipses per word.",
    "dclm_bullet_lines": "Share of lines that begin with `●`, `•`, `*` or `-`.",
    "dclm_ellipsis_lines": "Share of lines that end with an ellipsis.",
    "dclm_alphabetic_words": "Share of words with a letter.",
    "dclm_stop_words": "Number of stop words in the text, with each occurrence.",
    "dclm_removed_words": "Share of words in lines and phrases that DCLM removes.",
    "dclm_repeated_lines": "Share of lines that occur more than once.",
    "dclm_repeated_line_characters": "Share of characters in lines that occur more than once.",
    "dclm_repeated_paragraphs": "Share of paragraphs that occur more than once.",
    "dclm_repeated_paragraph_characters": "Share of characters in paragraphs that occur more than once.",
    **{f"dclm_top_{n}gram": f"Share of characters in the most frequent repeated sequence of {n} words." for n in TOP},
    **{f"dclm_repeated_{n}grams": f"Share of characters in repeated sequences of {n} words." for n in REPEATED},
}
_COUNTS = ("dclm_words", "dclm_stop_words")


def split_words(text: str) -> list[str]:
    """Return the words of a text without punctuation."""
    return _WORD.findall(text)


def measure_text(text: str) -> Sequence[Any]:
    """Return the columns of a text, in column order."""
    words, lines = text.split(), [line for line in text.split("\n") if line]
    count = _count_words(words)
    kept_words = [word for line in lines if not _is_removed(line) for word in _remove_phrases(line).split()]
    alphabetic_words = sum(any(map(str.isalpha, word)) for word in words)
    return (
        count,
        _divide(sum(map(len, words)), len(words)),
        _divide(sum(map(text.count, _SYMBOLS)), len(words)),
        _divide(sum(line.startswith(_BULLETS) for line in lines), len(lines)),
        _divide(sum(line.endswith(_ELLIPSES) for line in lines), len(lines)),
        _divide(alphabetic_words, len(words)),
        sum(word.lower() in STOP_WORDS for word in words),
        _divide(count - _count_words(kept_words), count),
        *_measure_parts(lines),
        *_measure_parts([paragraph.strip() for paragraph in text.split("\n\n")] if text else []),
        *_yield_ngram_shares(split_words(text)),
    )


def _divide(numerator: int, denominator: int) -> float | None:
    return numerator / denominator if denominator else None


def _count_words(words: Sequence[str]) -> int:
    return sum(word[0].isalnum() for word in words)


def _is_removed(line: str) -> bool:
    """Return whether DCLM removes a line: capitals, a number, a counter such as `3 likes`, or a single word."""
    return (
        sum(map(str.isupper, line)) > 0.5 * len(line)
        or all(map(str.isdigit, line))
        or _COUNTER.fullmatch(line.lower()) is not None
        or len(line.split()) < _LINE_WORDS
    )


def _remove_phrases(line: str) -> str:
    return _PHRASES.sub("", line) if len(line.split()) <= _PHRASE_WORDS else line


def _measure_parts(parts: Sequence[str]) -> tuple[float | None, float | None]:
    """Return the shares of parts that occur more than once, and of the characters in them."""
    occurrences = {part: times for part, times in Counter(parts).items() if times > 1}
    characters = sum(times * len(part) for part, times in occurrences.items())
    return _divide(sum(occurrences.values()), len(parts)), _divide(characters, sum(map(len, parts)))


def _yield_ngram_shares(words: Sequence[str]) -> Iterator[float | None]:
    """Yield the share of the most frequent 2-, 3- and 4-gram, then the shares of the repeated 5- to 10-grams."""
    starts = [0, *accumulate(map(len, words))]
    grams: Mapping[int, Any] = _select_repeated(dict(enumerate(words)))[0]
    for n in range(2, REPEATED[-1] + 1):
        # Follow only repeated n-grams, because a longer n-gram is repeated only if both shorter ones in it are.
        grams, counts = _select_repeated(
            {position: (gram, grams[position + 1]) for position, gram in grams.items() if position + 1 in grams}
        )
        characters = 0
        if n in TOP and grams:
            times = max(counts.values())
            firsts = [position for position, gram in grams.items() if counts[gram] == times]
            sizes = [starts[position + n] - starts[position] for position in firsts]
            characters = times * max(sizes)
        elif n in REPEATED:
            end = 0
            for position in grams:
                # Begin after the previous n-gram, because words of overlapping n-grams count once.
                start = max(position, end)
                end = position + n
                characters += starts[end] - starts[start]
        yield _divide(characters, starts[-1])


def _select_repeated(grams: Mapping[int, Any]) -> tuple[Mapping[int, int], Mapping[int, int]]:
    """Return position → number of each n-gram that occurs more than once, and number → occurrences."""
    counts = Counter(grams.values())
    numbers = {gram: number for number, gram in enumerate(gram for gram, times in counts.items() if times > 1)}
    positions = {position: numbers[gram] for position, gram in grams.items() if gram in numbers}
    return positions, {number: counts[gram] for gram, number in numbers.items()}


TAGGER = TextTagger.with_measure(
    columns={name: "integer" if name in _COUNTS else "number" for name in _DESCRIPTIONS},
    measure=measure_text,
    version=lambda: "1",
    descriptions=_DESCRIPTIONS,
)
