"""Benchmark items in the forms in which they leak, and texts that only look like them.

A long text is rewritten in six ways. A whole item is rendered as in exams, forums and data dumps: plain, with letters,
numbers or bullets before its choices, and with shuffled choices. Hard negatives are the same words in a different
order, a single short text of an item, and its short texts far from each other.

Entry points: `rewrite_text`, `render_item`, `build_look_alikes`.
"""

import random
from collections.abc import Mapping, Sequence

from dataprep_assets.curation.benchmarks.items import ItemText
from dataprep_assets.curation.duplicates.words import split_words

_BEFORE = "An old forum post begins here and goes on for a while."
_AFTER = "It ends here with other words."
_BETWEEN = """
    The harbour was quiet on that morning, and the keeper of the lighthouse wrote a long letter to his sister about the
    weather, the price of rope and the two dogs that slept beside the stove. Nobody answered before the winter.
"""


def rewrite_text(text: str) -> Mapping[str, str]:
    """Return six variants of a text in which it may leak, by name."""
    words = text.split()
    return {
        "case": text.upper(),
        "punctuation": " ".join(
            word.strip(".,;:!?'\"()") + ("," if index % 5 == 4 else "") for index, word in enumerate(words)
        ),
        "white space": "  \t ".join(words),
        "line breaks": "\n".join(" ".join(words[index : index + 7]) for index in range(0, len(words), 7)),
        "embedded": f"{_BEFORE} {text} {_AFTER}",
        "Unicode": text.replace(" ", "\u00a0").replace("'", "\u2019").replace("e", "e\u00ad"),
    }


def render_item(parts: Sequence[ItemText], seed: str) -> Mapping[str, str]:
    """Return the forms in which a whole item may leak, by name.

    Args:
        parts: Its texts.
        seed: Seed for the order of its choices.
    """
    # Remove repeated texts, because an exam prints a text once even if several fields contain it.
    questions = list(dict.fromkeys(text.text for text in parts if not text.alternative))
    choices = list(dict.fromkeys(text.text for text in parts if text.alternative))
    shuffled = random.Random(seed).sample(choices, len(choices))
    forms = {
        "plain": [*questions, *choices],
        "lettered": [*questions, *(f"{chr(65 + index % 26)}) {text}" for index, text in enumerate(choices))],
        "bracketed": [*questions, *(f"({chr(97 + index % 26)}) {text}" for index, text in enumerate(choices))],
        "numbered": [*questions, *(f"{index}. {text}" for index, text in enumerate(choices, 1))],
        "bulleted": [*questions, *(f"- {text}" for text in choices)],
        "question and answer": [
            f"Question: {' '.join(questions)}",
            *(f"Choice: {text}" for text in choices),
            "Answer: A",
        ],
        "choices shuffled": [*questions, *(f"{chr(65 + index % 26)}. {text}" for index, text in enumerate(shuffled))],
    }
    return {name: "\n".join([_BEFORE, *lines, _AFTER]) for name, lines in forms.items()}


def build_look_alikes(parts: Sequence[ItemText], seed: str) -> Mapping[str, str]:
    """Return texts that only look like an item with these short texts, by kind."""
    draw = random.Random(seed)
    words = [word for part in parts for word in split_words(part.text)]
    return {
        "shuffled": " ".join(draw.sample(words, len(words))),
        "one text": f"{_BEFORE} {max((part.text for part in parts), key=len)} {_AFTER}",
        "scattered": (_BETWEEN * (2 + len(words) // 10)).join(part.text for part in parts),
    }
