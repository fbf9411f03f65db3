"""Repetition within a document, as in Gopher (Rae et al. 2021, table A1): lines, paragraphs and word n-grams.

Each value is a share of the text's characters, or of its lines or paragraphs. For 2, 3 and 4 words, it is the share of
the most frequent n-gram, including blanks between words. For 5 to 10 words, it is the share of all n-grams that occur
earlier in the text, read from its beginning without overlap. Words are separated by white space, unless the setting
`words` names a language. A text without characters has null shares.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dataprep_assets.curation.languages.word_splitter import describe_words, find_splitter
from dataprep_assets.curation.planted.repetition import yield_cases
from dataprep_assets.curation.text_tagger import TextTagger

if TYPE_CHECKING:
    from dataprep_assets.curation.languages.word_splitter import WordSplitter
    from dataprep_assets.curation.text_arrays.split_texts import Numbers, SplitTexts

TOP, REPEATED = (2, 3, 4), (5, 6, 7, 8, 9, 10)

_DESCRIPTIONS = {
    "repeated_lines": "Share of lines that occur earlier in the text.",
    "repeated_line_characters": "Share of characters in lines that occur earlier in the text.",
    "repeated_paragraphs": "Share of paragraphs that occur earlier in the text.",
    "repeated_paragraph_characters": "Share of characters in paragraphs that occur earlier in the text.",
    **{f"top_{n}gram": f"Share of characters in the most frequent sequence of {n} words." for n in TOP},
    **{f"repeated_{n}grams": f"Share of characters in sequences of {n} words that occur earlier." for n in REPEATED},
}


def count_repeated(parts: Sequence[str]) -> tuple[int, int]:
    """Return the number of parts that occur earlier in the sequence, and their characters."""
    count = characters = 0
    for part, times in Counter(parts).items():
        if times > 1:
            count, characters = count + times - 1, characters + (times - 1) * len(part)
    return count, characters


def measure_texts(split: "SplitTexts", splitter: "WordSplitter | None" = None) -> Sequence[Sequence[Any]]:
    """Return the columns of some texts, in column order."""
    import numpy as np

    from dataprep_assets.curation.text_arrays.split_texts import divide

    sizes = split.text_ends - split.text_starts
    line_sizes = split.line_ends - split.line_starts
    lines, line_characters = split.repeated_lines
    paragraphs = split.sum_lines(line_sizes == 0) + 1
    repeated_paragraphs = np.zeros((len(sizes), 2), np.int64)
    # Compare paragraphs only in texts with repeated lines, because all lines of a repeated paragraph are repeated.
    for index in np.flatnonzero((lines > 0) & (paragraphs > 1)).tolist():
        text = split.get_text(split.text_starts[index], split.text_ends[index])
        repeated_paragraphs[index] = count_repeated(text.split("\n\n"))
    # A text without characters has one empty line.
    paragraphs[sizes == 0] = 0
    return (
        divide(lines, split.sum_lines(line_sizes > 0)),
        divide(line_characters, sizes),
        divide(repeated_paragraphs[:, 0], paragraphs),
        divide(repeated_paragraphs[:, 1], sizes),
        *(divide(characters, sizes) for characters in _yield_ngram_characters(split.split_words(splitter))),
    )


def _yield_ngram_characters(split: "SplitTexts") -> Iterator["Numbers"]:
    """Yield each text's characters of the most frequent 2-, 3- and 4-gram, then of the repeated 5- to 10-grams."""
    import numpy as np

    from dataprep_assets.curation.text_arrays.split_texts import find_first_indices, number_values

    is_word = split.sizes > 0
    texts, words = split.word_texts[is_word], split.word_numbers[is_word]
    # Compute each word's position in the joined words, because the number of characters in consecutive words is the
    # difference of two positions.
    starts = np.concatenate([[0], np.cumsum(split.sizes[is_word])])
    first_words = np.cumsum(split.word_counts) - split.word_counts
    # Number the words of each text separately, so that n-grams of different texts also have different numbers.
    grams = number_values(texts * (int(words.max(initial=0)) + 1) + words)
    # Follow only repeated n-grams, because a longer n-gram is repeated only if both shorter ones in it are.
    positions = np.flatnonzero(np.bincount(grams)[grams] > 1)
    grams = grams[positions]
    for n in range(2, REPEATED[-1] + 1):
        followed = np.flatnonzero((np.diff(positions) == 1) & (texts[positions[1:]] == texts[positions[:-1]]))
        # Combine two numbers into one. Both are below the number of words, so the result is far below 2**63.
        pairs = grams[followed] * (int(grams.max(initial=0)) + 1) + grams[followed + 1]
        positions, grams = positions[followed], number_values(pairs)
        counts = np.bincount(grams)
        repeated = np.flatnonzero(counts[grams] > 1)
        positions, grams = positions[repeated], grams[repeated]
        if n in TOP:
            # Without a repeated n-gram, the first one is the most frequent one.
            tops, frequencies = first_words.copy(), (split.word_counts >= n).astype(np.int64)
            repeated_grams = np.flatnonzero(counts > 1)
            firsts = positions[find_first_indices(grams)[repeated_grams]]
            # Numbers are in the order of texts, so the n-grams of a text are next to each other.
            gram_texts = texts[firsts]
            text_firsts = np.flatnonzero(np.diff(gram_texts, prepend=-1))
            # Break ties by position, because equally frequent n-grams may have different lengths.
            keys = counts[repeated_grams] * len(texts) + (len(texts) - 1 - firsts)
            best_counts, words_after = np.divmod(np.maximum.reduceat(keys, text_firsts), len(texts))
            repeated_texts = gram_texts[text_firsts]
            tops[repeated_texts] = len(texts) - 1 - words_after
            frequencies[repeated_texts] = best_counts
            ends = np.minimum(tops + n, len(texts))
            yield (starts[ends] - starts[tops] + n - 1) * frequencies
        if n in REPEATED:
            next_indices = np.searchsorted(positions, positions + n)
            chosen_positions = np.take(
                positions, np.array(_choose_repeated(grams.tolist(), next_indices.tolist()), np.int64)
            )
            characters = np.zeros(len(first_words), np.int64)
            np.add.at(characters, texts[chosen_positions], starts[chosen_positions + n] - starts[chosen_positions])
            yield characters


def _choose_repeated(grams: Sequence[int], next_indices: Sequence[int]) -> list[int]:
    """Return the indices of the n-grams that occur earlier, read without overlap."""
    earlier_grams: set[int] = set()
    chosen_indices = []
    index = 0
    while index < len(grams):
        gram = grams[index]
        if gram in earlier_grams:
            # Skip the whole repeated n-gram, so that n-grams that overlap it do not count.
            chosen_indices.append(index)
            index = next_indices[index]
        else:
            earlier_grams.add(gram)
            index += 1
    return chosen_indices


def build_tagger(*, words: str | None = None) -> TextTagger:
    """Return the tagger with its settings."""
    return TextTagger.with_measures(
        columns={
            "repeated_lines": "number",
            "repeated_line_characters": "number",
            "repeated_paragraphs": "number",
            "repeated_paragraph_characters": "number",
            **{f"top_{n}gram": "number" for n in TOP},
            **{f"repeated_{n}grams": "number" for n in REPEATED},
        },
        measure=partial(measure_texts, splitter=find_splitter(words)),
        version=lambda: f"1{describe_words(words)}",
        planted=yield_cases,
        configure=build_tagger,
        descriptions=_DESCRIPTIONS,
    )


TAGGER = build_tagger()
