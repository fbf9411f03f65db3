"""Finds the message of each token of a rendered conversation.

A conversation is rendered again with pairs of noncharacters, called anchors, at both ends of each of its texts. The
result is used only if every chunk without its anchors equals the normal rendering. A text is then between its anchors,
even if the template writes it several times. If a template strips a text, its anchors are inside the white space around
it. If a template examines how a text begins or ends, one anchor is in the middle of the text.

The texts of a message are its content, its reasoning, and the names and arguments of its calls. A call extends from its
first to its last text, including the template's syntax between them. All other text belongs to the template: headers,
tools, tags.

Entry point: `MessageLocator`.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.tokenization.chat.mask import ChatEncoder
from dataprep_assets.tokenization.chat.messages import Conversation, Refusal
from dataprep_assets.tokenization.chat.rendering import ConversationRenderer, RenderedConversation, keep_used_part
from dataprep_assets.tokenization.reference import Reference, load_reference

TEMPLATE = -1
"""Owner of a token without a character of a message."""
_POINTS = [chr(plane << 16 | low) for plane in range(1, 17) for low in (0xFFFE, 0xFFFF)]
_BEGIN, _END, *_DIGITS = _POINTS
"""Noncharacters of anchors, which differ from those of the renderer's placeholders and marks."""
_ANCHOR = re.compile(f"{_BEGIN}([{''.join(_DIGITS)}]+){_END}")
_TAG = re.compile("(</?think>)")
_TAGS = re.compile(r"\s*(</?think>\s*)+")


class MessageNotFoundError(Exception):
    """Error for a message whose text cannot be found in the rendering.

    Attributes:
        message: The index of the message; None if no message can be found.
        reason: The reason, as a sentence without its subject.
    """

    def __init__(self, message: int | None, reason: str) -> None:
        super().__init__(reason)
        self.message, self.reason = message, reason


class LocatedSequence(NamedTuple):
    """A sequence: its ids (uint32), and the index of each token's message, or `TEMPLATE`; shape `(tokens,)` each."""

    ids: NDArray[np.uint32]
    owners: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Text:
    """A piece of a message's text: the path of its value in the messages, and its spans in the value.

    `outer` and `core` are its spans with and without the white space at the ends. Pieces have the same `group` if the
    text between them belongs to the message. `tail` has the values after the piece that are not texts, such as numbers.
    """

    message: int
    path: tuple[Any, ...]
    value: str
    outer: tuple[int, int]
    core: tuple[int, int]
    group: int
    is_call: bool
    is_key: bool = False
    tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Placement:
    """Positions of the anchors of each text in its value: two, or one in the middle; none for an unlocated key."""

    positions: tuple[tuple[int, ...], ...]

    def move_anchors(self, number: int, positions: tuple[int, ...]) -> "_Placement":
        """Return the placement with other positions for a text."""
        return replace(self, positions=(*self.positions[:number], positions, *self.positions[number + 1 :]))


class _Span(NamedTuple):
    """The characters `[start, stop)` of a rendered sequence that come from the span `part` of a text's value."""

    start: int
    stop: int
    text: _Text
    part: tuple[int, ...]


class MessageLocator:
    """Search for the message of each token, with the renderer and the encoder of a shard."""

    def __init__(self, renderer: ConversationRenderer, encoder: ChatEncoder) -> None:
        self._renderer, self._encoder = renderer, encoder

    def locate(self, conversation: Conversation) -> list[LocatedSequence] | Refusal:
        """Return the sequences of a conversation, or its refusal.

        Raises MessageNotFoundError if the template writes a text differently with anchors.
        """
        rendered = keep_used_part(self._renderer.render(conversation))
        if isinstance(rendered, Refusal):
            return rendered
        if any(point in json.dumps(conversation.messages, ensure_ascii=False) for point in _POINTS):
            raise MessageNotFoundError(None, "the conversation contains Unicode noncharacters")
        texts = list(_find_texts(conversation.messages))
        placement = self._find_placement(conversation, rendered, texts)
        anchored = self._render(conversation, texts, placement)
        assert anchored is not None, "the placement was tried"
        return [
            self._encode(chunks, rendered.mark, _find_owners("".join(c.text for c in marked), texts, placement))
            for chunks, marked in zip(
                ([chunk.text for chunk in chunks] for chunks in rendered.sequences), anchored.sequences, strict=True
            )
        ]

    def _find_placement(
        self, conversation: Conversation, rendered: RenderedConversation, texts: Sequence[_Text]
    ) -> _Placement:
        """Return the widest placement that leaves the rendering unchanged."""

        def is_unchanged(placement: _Placement) -> bool:
            anchored = self._render(conversation, texts, placement)
            return anchored is not None and _remove_anchors(anchored) == rendered

        outer = _Placement(tuple(text.outer for text in texts))
        if is_unchanged(outer):
            return outer
        core = _Placement(tuple(text.core for text in texts))
        if not is_unchanged(core):
            core = self._find_cores(texts, is_unchanged)
        for side in (0, 1):
            numbers = [n for n, p in enumerate(core.positions) if len(p) == 2 and p[side] != texts[n].outer[side]]
            # Try all texts at once first, because most templates treat the white space of all texts alike.
            if is_unchanged(widened := _widen_placement(core, texts, numbers, side)):
                core = widened
                continue
            for number in numbers:
                if is_unchanged(widened := _widen_placement(core, texts, [number], side)):
                    core = widened
        return core

    @staticmethod
    def _find_cores(texts: Sequence[_Text], is_unchanged: Callable[[_Placement], bool]) -> _Placement:
        """Return a placement that excludes white space at the ends of texts, found by trying the texts one by one."""
        placement = _Placement(((),) * len(texts))
        for number, text in enumerate(texts):
            middle = (text.core[0] + text.core[1]) // 2
            for positions in (text.core, (middle,)):
                if is_unchanged(changed := placement.move_anchors(number, positions)):
                    placement = changed
                    break
            else:
                if not text.is_key:
                    raise MessageNotFoundError(
                        text.message, "the template writes it differently if its text is changed"
                    )
        return placement

    def _render(
        self, conversation: Conversation, texts: Sequence[_Text], placement: _Placement
    ) -> RenderedConversation | None:
        messages = _insert_anchors(conversation.messages, texts, placement)
        rendered = keep_used_part(self._renderer.render(replace(conversation, messages=messages)))
        return None if isinstance(rendered, Refusal) else rendered

    def _encode(self, chunks: Sequence[str], mark: str | None, owners: NDArray[np.int64]) -> LocatedSequence:
        """Return the ids of the chunks of a sequence, with the owner of each, given the owners of their characters."""
        ids, token_owners, position = list[int](), list[int](), 0
        for chunk in chunks:
            for id_, part in self._encoder.split_parts(chunk):
                part_owners = owners[position : position + len(part)]
                position += len(part)
                if id_ >= 0:
                    ids.append(id_)
                    token_owners.append(_choose_owner(part_owners))
                    continue
                text, is_flagged = part, False
                if mark is not None:
                    text, part_owners = self._restore(part, mark, part_owners)
                    is_flagged = self._encoder.has_literals(text)
                part_ids, spans = self._load_reference(is_flagged).encode_with_spans(text)
                ids += part_ids
                token_owners += [_choose_owner(part_owners[start:stop]) for start, stop in spans]
        return LocatedSequence(np.array(ids, np.uint32), np.array(token_owners, np.int64))

    def _restore(self, part: str, mark: str, owners: NDArray[np.int64]) -> tuple[str, NDArray[np.int64]]:
        """Return a text with literals for its placeholders, and the owners of its characters."""
        pieces, piece_owners, position = list[str](), list[NDArray[np.int64]](), 0
        for number, piece in enumerate(part.split(mark)):
            size = len(piece) + 2 * (number % 2)
            piece_text = self._encoder.restore(mark + piece + mark, mark) if number % 2 else piece
            pieces.append(piece_text)
            piece_owners.append(
                np.repeat(owners[position : position + 1], len(piece_text))
                if number % 2
                else owners[position : position + size]
            )
            position += size
        return "".join(pieces), np.concatenate(piece_owners)

    def _load_reference(self, is_flagged: bool) -> Reference:
        return _load_span_reference(self._encoder.choose_definition(is_flagged=is_flagged))


def _widen_placement(placement: _Placement, texts: Sequence[_Text], numbers: Sequence[int], side: int) -> _Placement:
    """Return a placement that includes the white space at one side of some texts."""
    for number in numbers:
        positions = list(placement.positions[number])
        positions[side] = texts[number].outer[side]
        placement = placement.move_anchors(number, tuple(positions))
    return placement


@lru_cache(maxsize=2)
def _load_span_reference(definition: str) -> Reference:
    """Return a tokenizer without a post-processor, because some post-processors exclude white space from spans."""
    return load_reference(json.dumps(json.loads(definition) | {"post_processor": None}))


def _find_texts(messages: Sequence[dict[str, Any]]) -> Iterator[_Text]:
    """Yield the texts of messages in the order of their keys."""
    group = 0
    for index, message in enumerate(messages):
        for key in ("reasoning_content", "content"):
            group += 1
            if isinstance(value := message.get(key), str):
                yield from _split_pieces(index, (index, key), value, group)
            elif isinstance(value, list):
                for number, part in enumerate(value):
                    if isinstance(part, dict) and isinstance(text := part.get("text"), str):
                        yield from _split_pieces(index, (index, key, number, "text"), text, group)
        for number, call in enumerate(message.get("tool_calls") or ()):
            group += 1
            head = (index, "tool_calls", number, *(("function",) if "function" in call else ()))
            inner = call.get("function", call)
            texts = list[_Text]()
            for path, value, is_key in [((*head, "name"), inner["name"], False), *_find_leaves(inner, head)]:
                if not isinstance(value, str):
                    texts[-1] = replace(texts[-1], tail=(*texts[-1].tail, json.dumps(value)))
                elif value.strip():
                    core = _strip_span(value, 0, len(value))
                    texts.append(_Text(index, path, value, (0, len(value)), core, group, True, is_key))
            yield from texts


def _find_leaves(inner: dict[str, Any], head: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any, bool]]:
    """Yield the path and value of each key and each value in the arguments of a call, and whether it is a key."""

    def walk(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any, bool]]:
        if isinstance(value, dict):
            for key, item in value.items():
                yield (*path, _Key(key)), key, True
                yield from walk(item, (*path, key))
        elif isinstance(value, list):
            for number, item in enumerate(value):
                yield from walk(item, (*path, number))
        else:
            yield path, value, False

    return walk(inner["arguments"], (*head, "arguments"))


class _Key(NamedTuple):
    """The last step of a path that leads to a key, not to its value."""

    name: str


def _split_pieces(message: int, path: tuple[Any, ...], value: str, group: int) -> Iterator[_Text]:
    """Yield the texts of a value between the tags of thoughts, at which a template may split it."""
    position = 0
    for number, piece in enumerate(_TAG.split(value)):
        outer = (position, position + len(piece))
        position += len(piece)
        start, stop = _strip_span(value, *outer)
        if number % 2 == 0 and start < stop:
            yield _Text(message, path, value, outer, (start, stop), group, False)


def _strip_span(value: str, start: int, stop: int) -> tuple[int, int]:
    piece = value[start:stop]
    return start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())


def _insert_anchors(
    messages: list[dict[str, Any]], texts: Sequence[_Text], placement: _Placement
) -> list[dict[str, Any]]:
    """Return the messages with the anchors of texts."""
    anchors: dict[tuple[Any, ...], list[tuple[int, str]]] = {}
    for number, (text, positions) in enumerate(zip(texts, placement.positions, strict=True)):
        for side, position in enumerate(positions):
            anchors.setdefault(text.path, []).append((position, _format_anchor(2 * number + side)))

    def insert(value: Any, path: tuple[Any, ...]) -> Any:
        if isinstance(value, str):
            for position, anchor in sorted(anchors.get(path, ()), reverse=True):
                value = value[:position] + anchor + value[position:]
            return value
        if isinstance(value, dict):
            return {insert(key, (*path, _Key(key))): insert(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [insert(item, (*path, number)) for number, item in enumerate(value)]
        return value

    return [insert(message, (index,)) for index, message in enumerate(messages)]


def _format_anchor(number: int) -> str:
    digits, base = "", len(_DIGITS)
    while True:
        number, digit = divmod(number, base)
        digits = _DIGITS[digit] + digits
        if not number:
            return f"{_BEGIN}{digits}{_END}"


def _parse_number(digits: str) -> int:
    number = 0
    for digit in digits:
        number = number * len(_DIGITS) + _DIGITS.index(digit)
    return number


def _remove_anchors(rendered: RenderedConversation) -> RenderedConversation:
    sequences = tuple(
        tuple(chunk._replace(text=text) for chunk in chunks if (text := _ANCHOR.sub("", chunk.text)))
        for chunks in rendered.sequences
    )
    return replace(rendered, sequences=sequences)


def _find_owners(anchored: str, texts: Sequence[_Text], placement: _Placement) -> NDArray[np.int64]:
    """Return the message of each character of a sequence, given its text with anchors."""
    plain, spans = _ANCHOR.sub("", anchored), list[_Span]()
    open_texts: dict[int, int] = {}
    removed = 0
    for match in _ANCHOR.finditer(anchored):
        position = match.start() - removed
        removed += len(match[0])
        number, side = divmod(_parse_number(match[1]), 2)
        text, positions = texts[number], placement.positions[number]
        if len(positions) == 1:
            start, stop = position - (positions[0] - text.core[0]), position + (text.core[1] - positions[0])
            if plain[max(0, start) : stop] != text.value[slice(*text.core)]:
                raise MessageNotFoundError(text.message, "the template changes its text")
            spans.append(_Span(start, stop, text, text.core))
        elif side == 0:
            open_texts[number] = position
        elif (start_position := open_texts.pop(number, None)) is not None:
            spans.append(_Span(start_position, position, text, positions))
        else:
            raise MessageNotFoundError(text.message, "the template writes only a part of it")
    if open_texts:
        raise MessageNotFoundError(texts[min(open_texts)].message, "the template writes only a part of it")
    owners = np.full(len(plain), TEMPLATE, np.int64)
    for span, limit in zip(spans, [*(span.start for span in spans[1:]), len(plain)], strict=True):
        end = _find_tail_end(plain, span, limit)
        owners[_find_start_with_tags(plain, span) : _find_end_with_tags(plain, span, end)] = span.text.message
    for span, next_span in pairwise(spans):
        if span.text.group == next_span.text.group and _is_connected(plain, span, next_span):
            owners[span.stop : next_span.start] = span.text.message
    return owners


def _find_tail_end(plain: str, span: _Span, limit: int) -> int:
    """Return the end of a span's tail before `limit`. A template may write the values of the tail as JSON or Python."""
    end = span.stop
    for value in span.text.tail:
        forms = dict.fromkeys((value, str(json.loads(value))))
        starts = [(start, len(form)) for form in forms if (start := plain.find(form, end, limit)) >= 0]
        end = sum(min(starts)) if starts else end
    return end


def _find_start_with_tags(plain: str, span: _Span) -> int:
    """Return the start of a text, including the tags of thoughts before it if the rendering has the value's tags."""
    head = span.text.value[: span.part[0]].lstrip()
    is_own = _TAGS.fullmatch(head) and plain.endswith(head, 0, span.start)
    return span.start - len(head) if is_own else span.start


def _find_end_with_tags(plain: str, span: _Span, end: int) -> int:
    """Return the end of a text, including the tags of thoughts after it if the rendering has the value's tags."""
    tail = span.text.value[span.part[1] :].rstrip()
    return span.stop + len(tail) if _TAGS.fullmatch(tail) and plain.startswith(tail, span.stop) else end


def _is_connected(plain: str, span: _Span, next_span: _Span) -> bool:
    """Return whether the text between two texts of a group is the message's own."""
    if span.text.is_call:
        return True
    between = span.text.value[span.text.core[1] : next_span.text.core[0]]
    return span.text.path == next_span.text.path and plain[span.stop : next_span.start].strip() == between.strip()


def _choose_owner(owners: NDArray[np.int64]) -> int:
    """Return the message that contributes the most characters to a token; if several do, the first of them."""
    # Count in Python, because a token has few characters, for which NumPy's functions take ten times as long.
    counts = Counter(owners.tolist())
    del counts[TEMPLATE]
    return max(counts, key=counts.__getitem__, default=TEMPLATE)
