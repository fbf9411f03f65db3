"""Generate a corpus of forty languages: words of Unicode's locale data in random sentences.

The words are real ones (names of places, languages, currencies, scripts, units of time), and frequent ones are drawn
far more often; some are joined from two halves, so that new words keep appearing as in real text. Scripts without
spaces are written without spaces. Needs `babel`. Equal arguments give equal bytes.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path

LOCALES = (
    *("am", "ar", "bg", "bn", "cs", "da", "de", "el", "en", "es"),
    *("fa", "fi", "fr", "gu", "he", "hi", "hu", "hy", "id", "it"),
    *("ja", "ka", "km", "ko", "lt", "mr", "my", "nl", "pl", "pt"),
    *("ro", "ru", "sv", "sw", "ta", "th", "tr", "uk", "vi", "zh"),
)
_WITHOUT_SPACES = frozenset({"ja", "km", "my", "th", "zh"})
_SPLICED, _NUMBER = 0.04, 0.03


def _words(name: str) -> list[str]:
    from babel import Locale

    locale = Locale.parse(name)
    phrases = [
        *(title for kind in ("format", "stand-alone") for title in locale.months[kind]["wide"].values()),
        *locale.days["format"]["wide"].values(),
        *locale.territories.values(),
        *locale.languages.values(),
        *locale.scripts.values(),
        *locale.currencies.values(),
    ]
    # Keep the order of first appearance, because earlier words will be more frequent.
    return list(dict.fromkeys(word for phrase in phrases for word in str(phrase).split()))


def documents(count: int, seed: int = 0) -> Iterator[str]:
    """Return this many documents of 80 to 600 words, each in one language; the languages take turns."""
    rng = random.Random(seed)
    known = {name: _words(name) for name in LOCALES}
    for number in range(count):
        name = LOCALES[number % len(LOCALES)]
        yield _document(rng, known[name], "" if name in _WITHOUT_SPACES else " ")


def _document(rng: random.Random, words: list[str], between: str) -> str:
    sentences = []
    left = rng.randint(80, 600)
    while left > 0:
        length = rng.randint(4, 20)
        left -= length
        sentences.append(between.join(_word(rng, words) for _ in range(length)) + (". " if between else "。"))
        if rng.random() < 0.1:
            sentences.append("\n\n")
    return "".join(sentences)


def _word(rng: random.Random, words: list[str]) -> str:
    def draw() -> str:
        return words[int(len(words) * rng.random() ** 2.5)]

    kind = rng.random()
    if kind < _SPLICED:
        left, right = draw(), draw()
        return left[: (len(left) + 1) // 2] + right[len(right) // 2 :]
    return str(rng.randint(0, 9_999)) if kind < _SPLICED + _NUMBER else draw()


def write_languages(folder: Path, *, files: int, documents_a_file: int) -> None:
    """Write `train/` (this many files), `validation/` and `test/` (one each): JSON lines in zstd, with SlimPajama's
    names.
    """
    import zstandard

    names = [*(f"train/chunk1/example_train_{number}" for number in range(files))]
    names += [f"{split}/chunk1/example_holdout_0" for split in ("validation", "test")]
    for seed, name in enumerate(names):
        path = folder / f"{name}.jsonl.zst"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in documents(documents_a_file, seed))
        path.write_bytes(zstandard.compress("".join(lines).encode()))
