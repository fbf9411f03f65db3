"""Table of the trained tokens by kind of turn: their counts, and a decoded sequence.

A turn is a run of trained tokens. Its answer is found in the source row by its text, without the template. A trained
token belongs to the reasoning, the answer's text, a call or the stop token. All other trained tokens, such as tags,
belong to the template.

Entry points: `build_turn_table`, `bracket_trained_text`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.checks.check import Row
from dataprep_assets.pipelines.blend.sft.opened_shard import OpenedShard, SampledSequence
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.chat.lost_text import find_own_texts
from dataprep_assets.tokenization.chat.messages import Refusal, has_visible_reasoning, is_trained

OPEN, CLOSE = "⟦", "⟧"
"""Brackets around the trained tokens of a decoded sequence."""
SHOWN_CHARACTERS = 4000
"""Maximum number of characters to show of a decoded sequence. The end is shown, because it has the last answer."""
PARTS = ("reasoning", "answer", "call", "stop", "template")
"""Kinds of trained tokens."""
UNTRAINED = "nothing in the loss"
_PART_OF = {"reasoning": "reasoning", "answer": "answer", "call_text": "answer"}


@dataclass
class _TurnKind:
    """Turns of one kind: their number, their trained tokens by part, and the shortest sequence that has such a turn."""

    example: SampledSequence
    count: int = 0
    tokens: Counter[str] = field(default_factory=Counter)


def build_turn_table(shard: OpenedShard) -> list[Row]:
    """Return a row for each kind of turn in the sampled sequences."""
    stops = np.array([token.id for token in shard.plan.stops.tokens])
    kinds: dict[str, _TurnKind] = {}
    for sample in shard.shown_sequences:
        messages = _read_answers(shard, sample)
        for start, stop in find_runs(sample.mask):
            ids = sample.tokens[start:stop]
            message = _find_message(shard.bundle.decode(ids), messages)
            turn_kind = kinds.setdefault(_classify_message(message), _TurnKind(sample))
            turn_kind.count += 1
            turn_kind.tokens += _count_parts(ids, message, stops, shard.bundle)
            turn_kind.example = min(turn_kind.example, sample, key=lambda sequence: len(sequence.tokens))
        if not sample.mask.any():
            kinds.setdefault(UNTRAINED, _TurnKind(sample)).count += 1
    return [
        {
            "turn": kind,
            "turns": turn_kind.count,
            **{part: turn_kind.tokens[part] for part in PARTS},
            "row": turn_kind.example.row,
            "sequence": turn_kind.example.number,
            "text": bracket_trained_text(turn_kind.example.tokens, turn_kind.example.mask, shard.bundle)[
                -SHOWN_CHARACTERS:
            ],
        }
        for kind, turn_kind in sorted(kinds.items())
    ]


def _read_answers(shard: OpenedShard, sample: SampledSequence) -> list[dict[str, Any]]:
    """Return the trained answers in a sequence's source row; empty if the row is not a conversation."""
    ordinal, row, _ = shard.origins[sample.number].tolist() if sample.number < len(shard.origins) else (-1, -1, -1)
    conversation = shard.compared_conversations.get(ordinal, {}).get(row)
    if conversation is None or isinstance(conversation, Refusal):
        return []
    return [message for message in conversation.messages if message["role"] == "assistant" and is_trained(message)]


def _find_message(text: str, messages: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the message with the most characters in a trained text; None if no message has text in it."""
    sizes = [
        sum(len(own_text.text.strip()) for own_text in find_own_texts(message, 0) if own_text.text.strip() in text)
        for message in messages
    ]
    return messages[int(np.argmax(sizes))] if any(sizes) else None


def _classify_message(message: dict[str, Any] | None) -> str:
    if message is None:
        return "other"
    content = message.get("content")
    has_text = bool(content.strip()) if isinstance(content, str) else bool(content)
    calls = message.get("tool_calls") or ()
    names = ["call" if len(calls) == 1 else "calls"] if calls else []
    names += ["text"] if calls and has_text else ["answer"] if not calls else []
    is_reasoned = has_visible_reasoning(message) or (isinstance(content, str) and "</think>" in content)
    return " with ".join((" and ".join(names), *["reasoning"] * is_reasoned))


def _count_parts(
    ids: NDArray[np.int32], message: dict[str, Any] | None, stops: NDArray[np.int64], bundle: TokenizerBundle
) -> Counter[str]:
    """Return the number of trained tokens of each part of a turn."""
    is_stop = np.isin(ids, stops)
    # Use the last stop token, because reasoning may end with a different stop token.
    stop = int(np.flatnonzero(is_stop)[-1]) if is_stop.any() else len(ids)
    lengths = _TextLengths(ids[:stop], bundle)
    counts = Counter({"stop": int(is_stop[stop : stop + 1].sum())})
    for part, start, end in _find_spans(lengths.text, message):
        counts[part] += lengths.count_tokens_before(end) - lengths.count_tokens_before(start)
    counts["template"] = len(ids) - counts.total()
    return +counts


def _find_spans(text: str, message: dict[str, Any] | None) -> Iterator[tuple[str, int, int]]:
    """Yield the part, start and end of the reasoning, the text and the calls of a message in its trained text."""
    position = 0
    calls: list[int] = []
    for own_text in find_own_texts(message, 0) if message else ():
        # Include surrounding white space only if the template keeps it, because some templates strip texts.
        content = own_text.text if own_text.text in text else own_text.text.strip()
        start = text.find(content, position)
        start = text.find(content) if start < 0 else start
        if not content.strip() or start < 0:
            continue
        position = start + len(content)
        if (part := _PART_OF.get(own_text.feature)) is not None:
            yield part, start, position
        else:
            calls += [start, position]
    if calls:
        yield "call", min(calls), max(calls)


class _TextLengths:
    """The text of tokens, and the lengths of their beginnings, each decoded once."""

    def __init__(self, ids: NDArray[np.int32], bundle: TokenizerBundle) -> None:
        self._ids, self._bundle, self.text = ids, bundle, bundle.decode(ids)
        self._length_by_count = {0: 0, len(ids): len(self.text)}

    def count_tokens_before(self, position: int) -> int:
        """Return the smallest number of leading tokens whose text has at least `position` characters."""
        # Search by interpolation, because the number of characters per token varies little, and decoding is slow.
        low, high = 0, len(self._ids)
        while low < high:
            begin, end = self._measure(low), self._measure(high)
            share = (position - begin) / (end - begin) if end > begin else 0.5
            middle = min(max(low + int(share * (high - low)), low), high - 1)
            if self._measure(middle) < position:
                low = middle + 1
            else:
                high = middle
        return low

    def _measure(self, count: int) -> int:
        if count not in self._length_by_count:
            self._length_by_count[count] = len(self._bundle.decode(self._ids[:count]))
        return self._length_by_count[count]


def find_runs(mask: NDArray[np.uint8]) -> Iterator[tuple[int, int]]:
    """Yield the runs of trained tokens of a sequence: the first token of each, and the token after its last.

    The `mask` is aligned with the labels.
    """
    # Shift the mask from labels to tokens, and add an untrained token, which ends the last run.
    token_mask = np.zeros(len(mask) + 1, np.int8)
    token_mask[1:-1] = mask[:-1]
    cuts = np.flatnonzero(np.diff(token_mask, prepend=np.int8(0)))
    yield from list(pairwise(cuts.tolist()))[::2]  # every second pair is the gap between two runs


def bracket_trained_text(tokens: NDArray[np.int32], mask: NDArray[np.uint8], bundle: TokenizerBundle) -> str:
    """Return the text of a sequence with brackets around its trained tokens.

    `tokens` (int32) and `mask` (uint8, aligned with the labels) have one element per token. `bundle` is the tokenizer.
    """
    pieces, position = [], 0
    for start, stop in find_runs(mask):
        pieces += [bundle.decode(tokens[position:start]), OPEN, bundle.decode(tokens[start:stop]), CLOSE]
        position = stop
    return "".join((*pieces, bundle.decode(tokens[position:])))
