"""The quality heuristics of Gopher (Rae et al. 2021, section A.1.1), as numbers for rules.

Words are separated by white space. A word without a letter or a digit is a symbol. It counts in the denominator of a
ratio, but not as a word of the document, nor in the mean length. A text without words has null ratios.
"""

from collections import Counter

from dataprep_assets.curation.text_tagger import TextTagger

STOP_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))
_ELLIPSES = ("...", "…")
_BULLETS = ("•", "-")


def measure_text(
    text: str,
) -> tuple[int, float | None, float | None, float | None, float | None, float | None, float | None, int]:
    """Return the values of the columns for one text, in column order."""
    # Examine each distinct word only once, because most words of a text are repeated.
    word_counts = Counter(text.split())
    total = word_counts.total()
    words = characters = alphabetic = 0
    for word, count in word_counts.items():
        if word.isalpha():
            alphabetic += count
        elif any(map(str.isalnum, word)):
            alphabetic += count * any(map(str.isalpha, word))
        else:
            continue
        words += count
        characters += count * len(word)
    lines = text.splitlines()
    bullets = sum(line.startswith(_BULLETS) for line in lines)
    ellipses = sum(line.endswith(_ELLIPSES) for line in lines)
    return (
        words,
        characters / words if words else None,
        text.count("#") / total if total else None,
        (text.count("...") + text.count("…")) / total if total else None,
        bullets / len(lines) if lines else None,
        ellipses / len(lines) if lines else None,
        alphabetic / total if total else None,
        len(STOP_WORDS & word_counts.keys()),
    )


TAGGER = TextTagger.with_measure(
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
    measure=measure_text,
    version=lambda: "1",
)
