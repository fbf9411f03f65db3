"""Texts that remember where they come from, while a template renders them.

A template mostly writes the texts of a conversation as they are, between texts of its own. To know which, it renders
`WatchedText`s: strings that carry their parts, texts of the template and *holes*, each of which is one text of the
conversation, perhaps without the white space around it. What the template asks about a hole (`'</think>' in content`)
is noted as a *condition*. So the rendering holds for every conversation with the same messages, other texts in the
holes, and the same answers to the conditions (`patterns.py`).

Whatever could look at a text in another way raises UnclearError: every other method of `str`, and in the template what
`watching.py` says. Then nothing is known, and each conversation is rendered.

Entry points: `Watch`, `WatchedText`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn, SupportsIndex

__all__ = ["Condition", "Hole", "UnclearError", "Watch", "WatchedText", "finished", "parts_of"]


class UnclearError(BaseException):
    """A template does with a text what cannot be said in parts and conditions. Never leaves this package.

    Not an Exception, because a template's functions may catch those.
    """


@dataclass(frozen=True, slots=True)
class Hole:
    """The place of one text: its number in the conversation, and the strips applied, each a method with its argument.

    `value` is what is there in the rendering that is watched; it is never blank.
    """

    text: int
    strips: tuple[tuple[str, str | None], ...] = ()
    value: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Condition:
    """What a hole was asked (`__contains__`, `startswith`, `endswith` or `__eq__`, and with what), and its answer."""

    hole: Hole
    method: str
    argument: str
    answer: bool


class Watch:
    """The conditions met in one rendering, in their order."""

    def __init__(self) -> None:
        self.conditions: dict[Condition, None] = {}

    def text(self, number: int, value: str) -> "WatchedText":
        """The text `number` of a conversation, to be rendered. It must not be blank."""
        made: WatchedText = WatchedText.of([Hole(number, (), value)], self)
        return made

    def ask(self, hole: Hole, method: str, argument: str) -> bool:
        """Ask a hole, and note the answer."""
        answer = bool(getattr(hole.value, method)(argument))
        self.conditions[Condition(hole, method, argument, answer)] = None
        return answer


Part = str | Hole


class WatchedText(str):
    """A string made of parts, of which at least one is a hole. What it cannot say for all values of its holes, it
    refuses to say."""

    parts: tuple[Part, ...]
    watch: Watch
    is_whole: bool
    """Whether it is (part of) a finished rendering: its length is then a place in it, which is as good as its parts. In
    a template a length is a number that says something about the texts."""

    @classmethod
    def of(cls, parts: Iterable[Part], watch: Watch, *, is_whole: bool = False) -> Any:
        """The string of these parts: a plain one if none is a hole."""
        joined: list[Part] = []
        for part in parts:
            if isinstance(part, str) and joined and isinstance(joined[-1], str):
                joined[-1] += part
            elif part:
                joined.append(part)
        text = "".join([part if isinstance(part, str) else part.value for part in joined])
        if all(isinstance(part, str) for part in joined):
            return text
        made = super().__new__(cls, text)
        made.parts, made.watch, made.is_whole = tuple(joined), watch, is_whole
        return made

    def _plain(self, value: Any) -> str:
        if not isinstance(value, str) or isinstance(value, WatchedText):
            raise UnclearError
        return value

    def _ask(self, method: str, argument: str) -> bool:
        (first, *more) = self.parts
        if more or isinstance(first, str):
            raise UnclearError
        return self.watch.ask(first, method, argument)

    def __str__(self) -> str:
        return self

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        if not self.is_whole:
            raise UnclearError
        return str.__len__(self)

    def __add__(self, other: Any) -> Any:
        return self.joined(self, other)

    def __radd__(self, other: Any) -> Any:
        return self.joined(other, self)

    def joined(self, *texts: Any) -> Any:
        if not all(isinstance(text, str) for text in texts):
            raise UnclearError
        return WatchedText.of((part for text in texts for part in parts_of(text)), self.watch)

    def __contains__(self, found: Any) -> bool:
        wanted = self._plain(found)
        if any(isinstance(part, str) and wanted in part for part in self.parts):
            return True
        return self._ask("__contains__", wanted)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, WatchedText) and other.parts == self.parts:
            return True
        if not isinstance(other, str):
            return False
        return self._ask("__eq__", self._plain(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        raise UnclearError

    def startswith(self, prefix: Any, *between: Any) -> bool:
        if between or not isinstance(prefix, str):
            raise UnclearError
        if not isinstance(prefix, WatchedText) and len(self.parts) == 1:
            return self._ask("startswith", prefix)
        return self._begins(list(self.parts), list(parts_of(prefix)))

    def _begins(self, ours: list[Part], theirs: list[Part]) -> bool:
        """Whether parts begin with parts, if that is so, or is not so, whatever is in the holes."""
        while theirs:
            if not ours:
                return False  # none of the other's parts is empty
            mine, other = ours.pop(0), theirs.pop(0)
            if isinstance(mine, str) and isinstance(other, str):
                common = min(len(mine), len(other))
                if mine[:common] != other[:common]:
                    return False
                if mine[common:]:
                    ours.insert(0, mine[common:])
                elif other[common:]:
                    theirs.insert(0, other[common:])
            elif mine != other:
                raise UnclearError
        return True

    def endswith(self, suffix: Any, *between: Any) -> bool:
        wanted = self._plain(suffix)
        if between:
            raise UnclearError
        last = self.parts[-1]
        if isinstance(last, str) and len(last) >= len(wanted):
            return last.endswith(wanted)
        return self._ask("endswith", wanted)

    def strip(self, chars: Any = None) -> Any:
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: Any = None) -> Any:
        return self._stripped("lstrip", chars, first=0)

    def rstrip(self, chars: Any = None) -> Any:
        return self._stripped("rstrip", chars, first=-1)

    def _stripped(self, method: str, chars: Any, *, first: int) -> Any:
        if chars is not None and not self._plain(chars).isspace():
            raise UnclearError  # a hole has a character that is not white space, but not any other
        left = list(self.parts)
        while True:
            part = left.pop(first)
            if isinstance(part, Hole):
                value = getattr(part.value, method)(chars)
                kept: Part = Hole(part.text, (*part.strips, (method, chars)), value)
            else:
                kept = getattr(part, method)(chars)
            if kept:
                left.insert(0 if first == 0 else len(left), kept)
                return WatchedText.of(left, self.watch, is_whole=self.is_whole)

    def split(self, sep: Any = None, maxsplit: SupportsIndex = -1) -> Any:
        if sep is None or sep in self:
            raise UnclearError
        return [self]

    def replace(self, old: Any, new: Any, *count: Any) -> Any:
        if not old or old in self:
            raise UnclearError
        return self

    def __getitem__(self, key: Any) -> Any:
        if not self.is_whole or not isinstance(key, slice) or key.step is not None:
            raise UnclearError
        start, stop, _ = key.indices(len(self))
        found: list[Part] = []
        at = 0
        for part in self.parts:
            value = part if isinstance(part, str) else part.value
            first, last = max(start - at, 0), min(stop - at, len(value))
            at += len(value)
            if first >= last:
                continue
            if isinstance(part, str):
                found.append(part[first:last])
            elif last - first == len(value):
                found.append(part)
            else:
                raise UnclearError
        return WatchedText.of(found, self.watch, is_whole=True)


def finished(text: str) -> str:
    """A rendering, of whose places one may speak."""
    return WatchedText.of(text.parts, text.watch, is_whole=True) if isinstance(text, WatchedText) else text


def parts_of(text: str) -> tuple[Part, ...]:
    """The parts of a string; a plain one is one part, or none if it is empty."""
    if isinstance(text, WatchedText):
        return text.parts
    return (text,) if text else ()


_OF_EVERY_OBJECT = frozenset(dir(object)) - {"__format__", "__repr__", "__lt__", "__le__", "__gt__", "__ge__"}


def _refuse_all_else() -> None:
    """Every method of `str` that is not defined above says nothing, and so does `__html__` of an escaping template."""

    def nothing(self: WatchedText, *_: Any, **__: Any) -> NoReturn:
        raise UnclearError

    for name in ("__html__", "__rmod__", "__rmul__", *dir(str)):
        if name not in _OF_EVERY_OBJECT and name not in vars(WatchedText):
            setattr(WatchedText, name, nothing)


_refuse_all_else()
