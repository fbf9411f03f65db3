"""Sampled rows of the files that a trainer reads, for people who look at the data.

A `Tracer` draws them (`Tracer.sample`), because it knows the positions of rows. A row is read from the trainer's file
and decoded with the dataset's tokenizer, never taken from the source.
"""

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.trace.place import TokenRange

MAX_TOKENS = 600
"""Maximum number of tokens of a part that are decoded."""
MAX_SHARDS = 8
"""Number of shards that a sample is drawn from, because opening a shard costs much more than reading a row."""


@dataclass(frozen=True, kw_only=True)
class SampledPart:
    """A part of a row: its only text, or one of several, such as the chosen answer.

    Attributes:
        name: Its name, such as `text`, `prompt` or `chosen`.
        text: The text of a part that has no tokens; otherwise None.
        tokens: Texts of its first tokens.
        trained_mask: Whether each of these tokens is in the loss; None if the format has no mask.
        trained_tokens: Number of the part's tokens in the loss, also of those after the first ones.
        roles: The role of the message of each of these tokens; None for the template's own text. Empty if unknown.
        messages: The index of the message of each token, from 0, like `roles`.
        omitted_tokens: Number of tokens after the first ones.
        prefix_tokens: Number of these tokens, from the first, that the stream adds before a document: 1 for BOS.
        suffix_tokens: Number of these tokens, up to the last, that it adds after a document: 1 for the separator.
    """

    name: str
    text: str | None = field(default=None, repr=False)
    tokens: Sequence[str] = field(default=(), repr=False)
    trained_mask: Sequence[bool] | None = None
    trained_tokens: int = 0
    roles: Sequence[str | None] = ()
    messages: Sequence[int] = ()
    omitted_tokens: int = 0
    prefix_tokens: int = 0
    suffix_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Number of the part's tokens."""
        return len(self.tokens) + self.omitted_tokens

    @property
    def document_text(self) -> str:
        """The text of its first tokens, without those that the stream adds."""
        return "".join(self.tokens[self.prefix_tokens : len(self.tokens) - self.suffix_tokens])


@dataclass(frozen=True, kw_only=True)
class SampledRow:
    """A row of a trainer's file.

    Attributes:
        split: Its split (in a blend, its dataset), as `dataprep trace --split` names it.
        file: Its source file, as named in the manifest.
        row: Its row in this file, from 1.
        partition: The shard of the dataset that has the row.
        locations: The places in the trainer's files from which it was read.
        parts: Its parts.
        run_split: In a blend, the split of the run that has the row; otherwise empty.
        notes: Sentences about the row, such as about parts that are not shown.
        is_traceable: Whether `dataprep trace` finds the row.
    """

    split: str
    file: str
    row: int
    partition: str
    locations: Sequence[TokenRange]
    parts: Sequence[SampledPart]
    run_split: str = ""
    notes: Sequence[str] = ()
    is_traceable: bool = True


@dataclass(frozen=True, kw_only=True)
class RowSample:
    """Random rows of the files that a trainer reads, in the order of the data.

    Attributes:
        total: Number of the rows from which they were drawn.
        rows: The rows, which are read during iteration.
    """

    total: int = 0
    rows: Iterable[SampledRow] = field(default=(), repr=False)

    def __iter__(self) -> Iterator[SampledRow]:
        return iter(self.rows)


def format_value(value: Any) -> str:
    """Return a text unchanged, messages with their roles, and any other value as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(
        isinstance(message, dict) and message.keys() == {"role", "content"} and isinstance(message["content"], str)
        for message in value
    ):
        return "\n\n".join(f"{message['role']}: {message['content']}" for message in value)
    return json.dumps(value, indent=2, ensure_ascii=False)


def build_part(
    name: str,
    ids: NDArray[np.integer],
    split_tokens: Callable[[Sequence[int]], list[str]],
    *,
    trained_mask: NDArray[np.bool_] | None = None,
    total: int | None = None,
) -> SampledPart:
    """Return a part with the texts of its first tokens.

    Args:
        name: The part's name.
        ids: The ids of its tokens, or of at least the first ones.
        split_tokens: Returns the texts of tokens (`TokenTexts.split`).
        trained_mask: Whether each token of the part is in the loss.
        total: Number of tokens of the part; default: the length of `ids`.
    """
    first_ids = ids[:MAX_TOKENS]
    return SampledPart(
        name=name,
        tokens=split_tokens([int(token) for token in first_ids]),
        trained_mask=None if trained_mask is None else [bool(value) for value in trained_mask[:MAX_TOKENS]],
        trained_tokens=0 if trained_mask is None else int(np.count_nonzero(trained_mask)),
        omitted_tokens=(len(ids) if total is None else total) - len(first_ids),
    )


def draw_numbers(size: int, count: int, seed: str) -> list[int]:
    """Return up to `count` different numbers below `size`, ascending; the same ones for the same arguments."""
    return sorted(random.Random(seed).sample(range(size), min(size, count)))


def draw_by_shard(sizes: Mapping[str, int], count: int, seed: str) -> Iterator[tuple[str, list[int]]]:
    """Yield some shards, each with numbers of its rows, about `count` in all.

    Shards are drawn at random. If the first ones have too few rows, more are drawn.

    Args:
        sizes: Shard → number of its rows.
        count: Number of rows.
        seed: Text that determines the result, together with the other arguments.
    """
    names = [name for name, size in sizes.items() if size]
    random.Random(seed).shuffle(names)
    share = -(-count // max(1, min(len(names), MAX_SHARDS)))
    row_counts, drawn_count = dict[str, int](), 0
    for name in names:
        if drawn_count >= count:
            break
        row_counts[name] = min(sizes[name], share, count - drawn_count)
        drawn_count += row_counts[name]
    # Keep the order of `sizes`, so that rows are shown in the order of the data.
    yield from (
        (name, draw_numbers(sizes[name], row_counts[name], f"{seed}/{name}")) for name in sizes if name in row_counts
    )
