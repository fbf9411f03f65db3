"""Words of a language, split by the library that published recipes use for it.

spaCy has rules for most languages. Words of Chinese, Japanese, Thai and Korean, which are not separated by spaces or
have several parts, are found by a dictionary: jieba, SudachiPy, PyThaiNLP and Kiwi. The libraries need the extra
`words`.

Entry points: `Language`, `SpacyLanguage`, `find_splitter`, `describe_words`, `find_unspaced_script`.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from typing import Any, Literal

from dataprep_assets.errors import build_missing_extra_error
from dataprep_assets.integrity.receipt import require_installed_version

# fmt: off
SpacyLanguage = Literal[
    "ar", "bg", "ca", "cs", "da", "de", "el", "en", "es", "et", "fa", "fi", "fr", "he", "hr", "hu", "id", "is",
    "it", "lt", "lv", "mk", "nb", "nl", "pl", "pt", "ro", "ru", "sk", "sl", "sq", "sr", "sv", "tr", "uk",
]
# fmt: on
"""Languages whose words and sentences spaCy splits by rules."""
Language = Literal[SpacyLanguage, "ja", "ko", "th", "zh"]
"""The languages that a tagger's setting `words` accepts."""

Split = Callable[[str], list[str]]
_EXTRA = "words"
_CHUNK_BYTES = 40_000
"""Maximum bytes of a text that SudachiPy splits at once; its own limit is 49,149."""
_LONG_NUMBER = re.compile("[0-9,]{20,}")
"""A number that Kiwi takes very long to split."""
_SURROGATES = re.compile("[\ud800-\udfff]")
_UNSPACED_SCRIPTS = {
    ("Thai", "th"): re.compile("[\u0e01-\u0e5b]"),
    ("Lao", None): re.compile("[\u0e81-\u0edf]"),
    ("Khmer", None): re.compile("[\u1780-\u17ff]"),
    ("Burmese", None): re.compile("[\u1000-\u109f]"),
    ("Chinese", "zh"): re.compile("[\u3400-\u9fff]"),
    ("Japanese", "ja"): re.compile("[\u3041-\u30ff]"),
}
"""Name and language of each script without spaces between words → its characters. Japanese also uses Chinese ones."""


def _import_library(module: str, language: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise build_missing_extra_error(_locate(language), module, _EXTRA) from error


def _locate(language: str) -> str:
    return f"tag: words: {language}"


@cache
def _load_spacy(language: str) -> Any:
    pipeline = _import_library("spacy", language).blank(language)
    pipeline.add_pipe("sentencizer")
    return pipeline


def _split_by_rules(language: str, text: str) -> list[str]:
    pipeline = _load_spacy(language)
    with pipeline.memory_zone():
        return [token.text for token in pipeline.tokenizer(text)]


def _build_spacy(language: str) -> Split:
    _load_spacy(language)
    return lambda text: _split_by_rules(language, text)


def _build_jieba(language: str) -> Split:
    tokenizer = _import_library("jieba", language).Tokenizer()
    # Read the dictionary here, because jieba would read a copy in the folder for temporary files, where any user of the
    # machine can write.
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True
    return lambda text: list(tokenizer.cut(text, cut_all=False))


def _build_sudachi(language: str) -> Split:
    library = _import_library("sudachipy", language)
    tokenizer = library.Dictionary(dict="core").tokenizer(mode=library.SplitMode.A)
    return lambda text: [
        word.surface() for chunk in _yield_chunks(text, _CHUNK_BYTES) for word in tokenizer.tokenize(chunk)
    ]


def _build_pythainlp(language: str) -> Split:
    split = _import_library("pythainlp.tokenize", language).word_tokenize
    return lambda text: list(split(text, keep_whitespace=False, engine="newmm-safe"))


def _build_kiwi(language: str) -> Split:
    tokenizer = _import_library("kiwipiepy", language).Kiwi()

    def split(text: str) -> list[str]:
        text = _LONG_NUMBER.sub("", text)
        return [text[token.start : token.end] for token in tokenizer.tokenize(text)]

    return split


def _yield_chunks(text: str, limit: int) -> Iterator[str]:
    """Yield a text in parts of at most this many UTF-8 bytes."""
    content = text.encode()
    while len(content) > limit:
        end = limit
        # Move the end to the start of a character.
        while content[end] & 0xC0 == 0x80:
            end -= 1
        yield content[:end].decode()
        content = content[end:]
    yield content.decode()


_DICTIONARIES: dict[str, tuple[Callable[[str], Split], tuple[str, ...]]] = {
    "ja": (_build_sudachi, ("sudachipy", "sudachidict_core")),
    "ko": (_build_kiwi, ("kiwipiepy", "kiwipiepy_model")),
    "th": (_build_pythainlp, ("pythainlp",)),
    "zh": (_build_jieba, ("jieba",)),
}
"""Language → a function that loads its library, and the packages that determine its words."""
_RULES = (_build_spacy, ("spacy",))


class WordSplitter:
    """The words and sentences of a language."""

    def __init__(self, language: str) -> None:
        """Prepare for a language without loading its library."""
        self.language = language
        self._build, self._packages = _DICTIONARIES.get(language, _RULES)
        self._split: Split | None = None

    @property
    def version(self) -> str:
        """The library and its version. Raises ConfigError if it is not installed."""
        location = _locate(self.language)
        return ", ".join(
            f"{package} {require_installed_version(location, package, _EXTRA)}" for package in self._packages
        )

    def split_text(self, text: str) -> list[str]:
        """Return the words of a text, without white space at their ends."""
        if self._split is None:
            self._split = self._build(self.language)
        # Replace surrogates, because the libraries only accept text that can be encoded as UTF-8.
        words = self._split(_SURROGATES.sub("\ufffd", text))
        return [stripped_word for word in words if (stripped_word := word.strip())]

    def count_sentences(self, line: str) -> int:
        """Return the number of sentences in a line that is not empty."""
        pipeline = _load_spacy(self.language)
        with pipeline.memory_zone():
            pipeline.max_length = len(line) + 1
            return sum(1 for _ in pipeline(_SURROGATES.sub("\ufffd", line)).sents)


@cache
def _load_splitter(language: str) -> WordSplitter:
    return WordSplitter(language)


def find_splitter(language: str | None) -> WordSplitter | None:
    """Return the splitter of a language, one per process; None if words are separated by white space."""
    return None if language is None else _load_splitter(language)


def describe_words(language: str | None) -> str:
    """Return the part of a tagger's version for its words; empty if words are separated by white space.

    Raises ConfigError if the language's library is not installed.
    """
    return "" if language is None else f", words {language} of {_load_splitter(language).version}"


def find_unspaced_script(text: str) -> tuple[str, str | None] | None:
    """Return the script without spaces between words that most of a text has, and its language if a library splits it.

    Return None if most of the text has a different script.
    """
    counts = {script: len(characters.findall(text)) for script, characters in _UNSPACED_SCRIPTS.items()}
    chinese, japanese = ("Chinese", "zh"), ("Japanese", "ja")
    # Count Chinese characters as Japanese next to kana, because a Japanese text contains both.
    if counts[japanese] * 10 > counts[chinese]:
        counts[japanese] += counts.pop(chinese)
    script, count = max(counts.items(), key=lambda item: item[1])
    return script if 2 * count > sum(map(len, text.split())) else None
