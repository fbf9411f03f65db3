"""The rendering of conversations by their shape: what was learned from one serves all of the same shape.

The *shape* of a conversation is everything in it except its texts: the roles, the fields of each message and their
order. Most templates write the texts as they are, so conversations of one shape differ in their renderings by nothing
else. `watched.py` says where the texts go, and under which conditions; this module keeps that as a *pattern*, and fills
it with the texts of the next conversation, without the template.

A pattern is not trusted at once: the first conversations that fit it are rendered as well. If one comes out different,
no pattern of that template is used again.

Entry points: `shape_of`, `Patterns`.
"""

from collections.abc import Callable
from typing import Any

from dataprep_assets.tokenization.chat.chunks import Filled, Outline, Sequences
from dataprep_assets.tokenization.chat.messages import Conversation
from dataprep_assets.tokenization.chat.watched import Hole, UnclearError, Watch, parts_of

__all__ = ["Patterns", "Shape", "shape_of"]

Shape = tuple[Any, ...]
_WITHIN = "__contains__"
_TRUSTED = 3
"""Conversations that must come out the same, the first included."""
_MOST_SHAPES, _MOST_PATTERNS, _MOST_PARTS = 4096, 4, 200_000
"""Shapes remembered; patterns of one shape, as more conditions than that are not worth trying; parts of all patterns
together, about 15 MB."""


def shape_of(conversation: Conversation) -> tuple[Shape, list[str]] | None:
    """The shape of a conversation, and its texts that are not blank, in order.

    None for one with tools or with other fields than role, content and reasoning: those are always rendered.
    """
    if conversation.tools is not None:
        return None
    shape: list[Any] = []
    texts: list[str] = []
    for message in conversation.messages:
        for key, value in message.items():
            if type(value) is not str:
                return None
            shape.append(key)
            if key in ("content", "reasoning_content"):
                if not value or value.isspace():
                    shape.append(value)
                else:
                    shape.append(None)
                    texts.append(value)
            elif key == "role":
                shape.append(value)
            else:
                return None
        shape.append(None)
    return tuple(shape), texts


def _with_texts(conversation: Conversation, watch: Watch) -> Conversation:
    """A conversation in which the texts that `shape_of` gives are watched."""
    number = 0
    messages = []
    for message in conversation.messages:
        watched = dict(message)
        for key, value in message.items():
            if key != "role" and value and not value.isspace():
                watched[key] = watch.text(number, value)
                number += 1
        messages.append(watched)
    return Conversation(messages, None)


class _Pattern:
    """An outline, what is stripped of the texts that fill it, and the conditions under which it holds."""

    def __init__(self, sequences: Sequences, watch: Watch) -> None:
        holes: dict[Hole, int] = {}

        def number(hole: Hole) -> int:
            return holes.setdefault(hole, len(holes))

        self.outline = Outline(
            tuple(
                tuple(
                    (tuple(p if isinstance(p, str) else number(p) for p in parts_of(chunk.text)), chunk.trained)
                    for chunk in chunks
                )
                for chunks in sequences
            )
        )
        asked = [(number(c.hole), c.method, c.argument, c.answer) for c in watch.conditions]
        self._contained = [(n, argument[:1], argument, answer) for n, how, argument, answer in asked if how == _WITHIN]
        self._conditions = [condition for condition in asked if condition[1] != _WITHIN]
        self._texts = [hole.text for hole in holes]
        self._strips = [(at, *strip) for at, hole in enumerate(holes) for strip in hole.strips]
        self.matched = 0

    def filled(self, texts: list[str]) -> list[str] | None:
        """The texts that fill the outline's holes; None if they do not fulfil the conditions."""
        values = [texts[number] for number in self._texts]
        for at, method, characters in self._strips:
            values[at] = getattr(values[at], method)(characters)
        for at, first, argument, answer in self._contained:
            value = values[at]
            if (first in value and argument in value) is not answer:  # one character is found much faster than several
                return None
        for at, method, argument, answer in self._conditions:
            if getattr(values[at], method)(argument) != answer:
                return None
        return values


class Patterns:
    """The patterns of one template and one way to cut its renderings, learned from conversations as they come."""

    def __init__(self, rendered: Callable[[Conversation], Sequences]) -> None:
        """`rendered` makes the sequences of a conversation with watched texts; it may raise anything."""
        self._rendered = rendered
        self._known: dict[Shape, list[_Pattern] | None] = {}
        """Shape → its patterns; None for a shape that was seen once, no patterns for one that cannot have any."""
        self._parts = 0
        self._is_refuted = False

    def filled(self, shape: Shape, texts: list[str]) -> Filled | None:
        """The outline of a trusted pattern filled with the texts of a conversation; None if there is none for it.

        The texts must not hold special tokens.
        """
        for pattern in self._known.get(shape) or ():
            if pattern.matched >= _TRUSTED and (values := pattern.filled(texts)) is not None:
                return Filled(pattern.outline, values)
        return None

    def learn(self, shape: Shape, texts: list[str], conversation: Conversation, sequences: Sequences) -> None:
        """Compare what the patterns say with the `sequences` that the template gave; if none fits, make one."""
        if self._is_refuted:
            return
        if shape not in self._known:
            if len(self._known) < _MOST_SHAPES:
                self._known[shape] = None
            return
        patterns = self._known[shape]
        if patterns is None:
            patterns = self._known[shape] = []
            self._add(patterns, conversation)
        elif patterns and all(pattern.filled(texts) is None for pattern in patterns):
            self._add(patterns, conversation)
        for pattern in patterns:
            if (values := pattern.filled(texts)) is not None:
                if pattern.outline.filled(values) != sequences:
                    self._is_refuted = True
                    self._known.clear()
                    return
                pattern.matched += 1

    def _add(self, patterns: list[_Pattern], conversation: Conversation) -> None:
        if len(patterns) >= _MOST_PATTERNS or self._parts >= _MOST_PARTS:
            return
        watch = Watch()
        try:
            pattern = _Pattern(self._rendered(_with_texts(conversation, watch)), watch)
        except UnclearError:
            return
        patterns.append(pattern)
        self._parts += pattern.outline.parts
