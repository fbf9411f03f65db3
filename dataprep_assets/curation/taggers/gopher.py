"""The quality heuristics of Gopher (Rae et al. 2021, section A.1.1).

Words are separated by white space, unless the setting `words` names a language. A word without a letter or a digit is a
symbol. It counts in the denominator of a ratio, but not as a word of the document, nor in the mean length. `stop_words`
is the number of different words among `the`, `be`, `to`, `of`, `and`, `that`, `have` and `with`, or among the words of
the setting `stop_words`. A text without words has null ratios.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dataprep_assets.curation.languages.word_splitter import describe_words, find_splitter
from dataprep_assets.curation.text_tagger import TextTagger

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dataprep_assets.curation.languages.word_splitter import WordSplitter
    from dataprep_assets.curation.text_arrays.split_texts import Numbers, SplitTexts

STOP_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))

_DESCRIPTIONS = {
    "words": "Number of words with a letter or a digit.",
    "mean_word_length": "Mean length of these words, in characters.",
    "hashes_per_word": "Number of `#` per word.",
    "ellipses_per_word": "Number of ellipses (`...` or `…`) per word.",
    "bullet_lines": "Share of lines that begin with `•` or `-`.",
    "ellipsis_lines": "Share of lines that end with an ellipsis.",
    "alphabetic_words": "Share of words with a letter.",
    "stop_words": "Number of different stop words in the text.",
}


def measure_texts(
    split: "SplitTexts", splitter: "WordSplitter | None" = None, stop_words: frozenset[str] = STOP_WORDS
) -> Sequence[Sequence[Any]]:
    """Return the columns of some texts, in column order."""
    import numpy as np

    from dataprep_assets.curation.text_arrays.split_texts import ALPHABETIC, ALPHANUMERIC, divide

    codes, symbols, words = split.codes, split.symbols, split.split_words(splitter)
    total = words.word_counts
    kinds = _find_word_kinds(words)
    is_word = kinds & ALPHANUMERIC > 0
    counts = words.sum_words(is_word)
    hashes = split.count_positions(np.flatnonzero(symbols == ord("#")))
    # A run of periods contains an ellipsis per three periods.
    is_period = symbols == ord(".")
    periods = np.flatnonzero(is_period[2:] & is_period[1:-1] & is_period[:-2])
    run_firsts = np.flatnonzero(np.diff(periods, prepend=-2) != 1)
    run_ellipses = (np.diff(run_firsts, append=len(periods)) + 2) // 3
    ellipses = split.count_positions(np.repeat(periods[run_firsts], run_ellipses))
    ellipses += split.count_positions(np.flatnonzero(codes == ord("…")))
    first_codes, last_codes = codes[split.line_starts], codes[split.line_ends - 1]
    return (
        counts.tolist(),
        divide(words.sum_words(words.sizes * is_word), counts),
        divide(hashes, total),
        divide(ellipses, total),
        divide(split.sum_lines((first_codes == ord("•")) | (first_codes == ord("-"))), split.line_counts),
        divide(split.sum_lines(split.ellipsis_lines | (last_codes == ord("…"))), split.line_counts),
        divide(words.sum_words(kinds & ALPHABETIC > 0), total),
        _count_stop_words(words, stop_words).tolist(),
    )


def _count_stop_words(split: "SplitTexts", stop_words: frozenset[str]) -> "Numbers":
    """Return how many of the stop words occur in each text."""
    import numpy as np

    counts = np.zeros(split.count, np.int64)
    # Compare the first bytes of short words as one number each, and then the rest of the few equal ones.
    words = np.flatnonzero(split.sizes <= max(map(len, stop_words)))
    sizes, beginnings = split.sizes[words], split.read_beginnings(words)
    for stop_word in stop_words:
        symbols = bytes(min(ord(character), 255) for character in stop_word[:8])
        is_match = (beginnings == int.from_bytes(symbols, "little")) & (sizes == len(stop_word))
        matches = words[is_match]
        for offset, character in enumerate(stop_word):
            if offset >= 8 or ord(character) >= 255:
                matches = matches[split.codes[split.starts[matches] + offset] == ord(character)]
        has_word = np.zeros(split.count, np.bool_)
        has_word[split.word_texts[matches]] = True
        counts += has_word
    return counts


def _find_word_kinds(split: "SplitTexts") -> "NDArray[np.uint8]":
    """Return the kinds of each word's characters."""
    import numpy as np

    from dataprep_assets.curation.text_arrays.split_texts import ALPHABETIC, build_kinds, join_pieces, look_up

    # Read the first characters of most words only, because a letter shows all kinds of a word.
    table = build_kinds()
    kinds = look_up(table, split.codes[split.starts]).copy()
    words = np.flatnonzero(kinds & ALPHABETIC == 0)
    for offset in (1, 2):
        words = words[split.sizes[words] > offset]
        kinds[words] |= look_up(table, split.codes[split.starts[words] + offset])
        words = words[kinds[words] & ALPHABETIC == 0]
    words = words[split.sizes[words] > 3]
    if len(words):
        rest_codes, ends = join_pieces(split.codes, split.starts[words] + 3, split.sizes[words] - 3)
        kinds[words] |= np.bitwise_or.reduceat(look_up(table, rest_codes), np.concatenate([[0], ends[:-1]]))
    return kinds


def build_tagger(*, words: str | None = None, stop_words: Iterable[str] = STOP_WORDS) -> TextTagger:
    """Return the tagger with its settings."""
    return TextTagger.with_measures(
        columns={
            "words": "integer",
            "mean_word_length": "number",
            "hashes_per_word": "number",
            "ellipses_per_word": "number",
            "bullet_lines": "number",
            "ellipsis_lines": "number",
            "alphabetic_words": "number",
            "stop_words": "integer",
        },
        measure=partial(measure_texts, splitter=find_splitter(words), stop_words=frozenset(stop_words)),
        version=lambda: f"1{describe_words(words)}",
        configure=build_tagger,
        descriptions=_DESCRIPTIONS,
    )


TAGGER = build_tagger()
