"""Items of benchmarks in the forms in which they leak, and texts that only look like them.

A long text is rewritten in six ways. An item as a whole is written as exams, forums and dumps of data have it: plain,
with letters, numbers or bullets before its choices, and with its choices in another order. Hard negatives are the same
words in another order, one short text of an item alone (a name, a phrase), and its short texts far from each other.

Entry points: `rewrites`, `renderings`, `look_alikes`.
"""

import random
from collections.abc import Mapping, Sequence

from dataprep_assets.curation.benchmarks.items import ItemText
from dataprep_assets.curation.duplicates.words import words_of

_BEFORE = "An old forum post begins here and goes on for a while."
_AFTER = "It ends here with other words."
_BETWEEN = """
    The harbour was quiet on that morning, and the keeper of the lighthouse wrote a long letter to his sister about the
    weather, the price of rope and the two dogs that slept beside the stove. Nobody answered before the winter.
"""


def rewrites(text: str) -> Mapping[str, str]:
    """A text in six ways in which it leaks: by name of the way."""
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


def renderings(parts: Sequence[ItemText], seed: str) -> Mapping[str, str]:
    """An item as a whole in the forms in which it leaks: by name of the form.

    Args:
        parts: Its texts.
        seed: Of the order of its choices.
    """
    # a text that an item has twice is written once
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


def look_alikes(parts: Sequence[ItemText], seed: str) -> Mapping[str, str]:
    """Texts that look like an item of these short texts and are none: by name of the kind."""
    draw = random.Random(seed)
    words = [word for part in parts for word in words_of(part.text)]
    return {
        "shuffled": " ".join(draw.sample(words, len(words))),
        "one text": f"{_BEFORE} {max((part.text for part in parts), key=len)} {_AFTER}",
        "scattered": (_BETWEEN * (2 + len(words) // 10)).join(part.text for part in parts),
    }
