"""The quality heuristics of Gopher (Rae et al. 2021, section A.1.1), as numbers that rules compare.

A word is what stands between white space; one without a letter or a digit is a symbol, which counts among the words of
a ratio, but neither as a word of the document nor in the mean length. A text without words has no ratio: null.
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
    # each word is looked at once, however often it is there
    found = Counter(text.split())
    every = found.total()
    words = characters = alphabetic = 0
    for word, count in found.items():
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
        text.count("#") / every if every else None,
        (text.count("...") + text.count("…")) / every if every else None,
        bullets / len(lines) if lines else None,
        ellipses / len(lines) if lines else None,
        alphabetic / every if every else None,
        len(STOP_WORDS & found.keys()),
    )


TAGGER = TextTagger.of_each(
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
    measured=measure_text,
    version=lambda: "1",
)
