"""Sentences that know what their numbers count, for outputs that hide small counts (`graph.small_cells`).

A text alone does not tell. So numbers are typed where a sentence is written::

    sentence(f"{path}: row {safe(row)} holds {number_of(notes, 'note')}")

`safe` is a number that counts no people and no documents: a position, a number of files or shards, a setting;
`number_of` is a count with its noun, `typed` an error or a sentence with the types that it has. Every other number of a
text may count people, and is hidden where small counts are. So what is forgotten hides too much, never too little.

These functions mark their text with characters that no text has, which `sentence` takes out, as this project's errors
and `graph.finding.verdict` do with what they are given: they are called nowhere else (`test_house`).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

T = TypeVar("T")
_BEGIN, _END, _NEXT = "\ufdd0", "\ufdd1", "\ufdd2"
"""Code points that Unicode keeps out of all text, for use inside of programs (The Unicode Standard, section 23.7)."""
_TYPED = re.compile(f"{_BEGIN}(?:(\\d+){_NEXT}([^{_NEXT}]*){_NEXT})?([^{_END}]*){_END}")


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a sentence that is typed.

    Attributes:
        start: Its first character, counted from 0.
        stop: The character after its last.
        count: How many people or documents it counts; None if it counts none and is shown as it is.
        noun: What is counted, in the plural, which does not tell how many.
    """

    start: int
    stop: int
    count: int | None = None
    noun: str = ""


class Sentence(str):
    """A text with its typed parts. `+`, slices and `joined` keep them; all else makes a plain text."""

    __slots__ = ("spans",)
    spans: tuple[Span, ...]

    def __new__(cls, text: str, spans: Iterable[Span] = ()) -> "Sentence":
        self = super().__new__(cls, text)
        self.spans = tuple(spans)
        return self

    # for pickle: errors of worker processes come back with the types of their numbers
    def __getnewargs__(self) -> Any:
        return plain(self), self.spans

    def __str__(self) -> "Sentence":
        return self  # `str(error)` is the sentence that the error was raised with

    def __format__(self, form: str) -> str:
        """In an f-string, which loses the types, a count is in the plural, which does not tell that it is one."""
        text = "".join(("", self))
        # from the end, so that the positions before stay right
        for one in reversed(self.spans):
            if one.count is not None:
                text = f"{text[: one.start]}{one.count:,} {one.noun}{text[one.stop :]}"
        return format(text, form)

    def __getitem__(self, key: Any) -> "Sentence":
        text = super().__getitem__(key)
        if not isinstance(key, slice) or key.step not in (None, 1):
            return Sentence(text)
        start = key.indices(len(self))[0]
        stop = start + len(text)
        spans = []
        for one in self.spans:
            first, last = max(one.start, start), min(one.stop, stop)
            # of a count that is cut nothing is known any more
            if first < last and (one.count is None or last - first == one.stop - one.start):
                spans.append(replace(one, start=first - start, stop=last - start))
        return Sentence(text, spans)

    def __add__(self, other: str) -> str:
        return joined("", (self, other))

    def __radd__(self, other: str) -> str:
        return joined("", (other, self))


def sentence(text: str) -> str:
    """The text as a `Sentence`, which knows which parts of it are typed."""
    if isinstance(text, Sentence):
        return text
    # `at` counts in the text without marks, `done` in the one with them
    parts, spans, at, done = list[str](), list[Span](), 0, 0
    for match in _TYPED.finditer(text):
        count, noun, part = match.groups()
        parts += (text[done : match.start()], part)
        at += match.start() - done
        spans.append(Span(at, at + len(part), None if count is None else int(count), noun or ""))
        at, done = at + len(part), match.end()
    return Sentence("".join((*parts, text[done:])), spans)


def safe(value: object, form: str = "") -> str:
    """In a `sentence`: a number, or a text, that counts no people and no documents, formatted by `form`."""
    return f"{_BEGIN}{value:{form}}{_END}" if form else f"{_BEGIN}{value}{_END}"


def number_of(count: int, noun: str) -> str:
    """In a `sentence`: people or documents with their noun, `1 note`, `2 notes`, `1,000 notes`.

    Args:
        count: How many.
        noun: The noun in the singular; its plural is formed with `s`.
    """
    return f"{_BEGIN}{count}{_NEXT}{noun}s{_NEXT}{_counted(count, noun)}{_END}"


def safe_number_of(count: int, noun: str) -> str:
    """In a `sentence`: as `number_of`, of things that are neither people nor documents: `1 shard`, `2 files`."""
    return safe(_counted(count, noun))


def typed(text: object) -> str:
    """In a `sentence`: another one, or an error that was raised with one, with the types that it has."""
    said = str(text)
    if not isinstance(said, Sentence):
        return said
    parts, done = list[str](), 0
    for one in said.spans:
        counted = "" if one.count is None else f"{one.count}{_NEXT}{one.noun}{_NEXT}"
        parts += (plain(said[done : one.start]), _BEGIN, counted, plain(said[one.start : one.stop]), _END)
        done = one.stop
    return "".join((*parts, said[done:]))


def joined(separator: str, texts: Iterable[str]) -> str:
    """As `str.join`, of texts that stay typed."""
    return sentence(separator.join(map(typed, texts)))


def spans_of(text: str) -> list[tuple[int, int, int | None, str]]:
    """The typed parts of a text as builtins, each the arguments of `Span`."""
    return [(one.start, one.stop, one.count, one.noun) for one in text.spans] if isinstance(text, Sentence) else []


def plain(value: T) -> T:
    """A text without its types, of the class `str` itself; another value as it is."""
    # `str(value)` would be the sentence itself
    return cast("T", "".join(("", value))) if isinstance(value, Sentence) else value


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
