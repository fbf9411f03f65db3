"""Views of conversations (`<dataset>/<view>`): the run's conversations in the file formats of SFT trainers.

A view of tokens is written from the packed rows of a finished run (`packed_sft`, in `runs/<run hash>/splits/<split>/`),
which contain the ids, the loss mask and the boundaries of all sequences. For a view of messages, the sources of the
run's shards are read again (`used_conversations.py`).

Entry points: `ConversationView`, `PackedSplit`, `ConversationViewFacts`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from dataprep_assets.engine.checks.check import Check
from dataprep_assets.errors import count_of
from dataprep_assets.formats.conversations.labeled_tokens import UNTRAINED, LabeledTokens, find_first_difference
from dataprep_assets.formats.packed_rows import PackedFile, open_packed_file
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.runs import RUNS
from dataprep_assets.pipelines.blend.sft.packed_sft import PACKED_SFT
from dataprep_assets.pipelines.blend.sft.shard import PackedSftFacts
from dataprep_assets.pipelines.blend.sft.views import VIEWS
from dataprep_assets.pipelines.blend.view import (
    LAYOUT_VALID,
    BlendView,
    BlendViewFacts,
    BlendViewWriter,
    OpenedBlendView,
    RunSplit,
    UsedShard,
    matches_run,
)

Row = Literal["sequence", "packed_row", "conversation"]
"""Content of each row of a view."""
_ROW_FACTS: Mapping[Row, str] = {"sequence": "sequences", "packed_row": "bins", "conversation": "conversations"}


class ConversationViewFacts(BlendViewFacts):
    """Facts of a view: numbers of sequences, tokens and trained tokens by split, and settings for the trainer."""

    writer_fields: ClassVar[frozenset[str]] = frozenset({"settings"})

    sequences: dict[str, int]
    tokens: dict[str, int]
    trained_tokens: dict[str, int]
    settings: dict[str, int] = Field(default_factory=dict)


class FlatTokens(NamedTuple):
    """Layout of a flat array of sequences: bytes per token, and the number of tokens added after each sequence."""

    itemsize: int
    added: int


@dataclass(frozen=True, kw_only=True)
class PackedSplit(RunSplit[PackedSftFacts]):
    """A split of a finished run, with its packed shards in the order of the run's files."""

    shards_name: ClassVar[str] = PACKED_SFT
    shard_facts: ClassVar[type[PackedSftFacts]] = PackedSftFacts
    documents_fact: ClassVar[str] = "conversations"

    def open(self, store: ArtifactStore, number: int) -> PackedFile:
        """Return the packed file of a shard, without padding. The file is downloaded if necessary.

        An iteration reads one row group at a time.
        """
        return open_packed_file(self.shards[number].fetch_file(store)).without_padding()


@dataclass(frozen=True, kw_only=True)
class ConversationView(BlendView[PackedSplit]):
    """A trainer's format for conversations; the artifact has the view's name.

    Attributes:
        write: Writes all splits into a view under construction. It may resume from finished files in the folder.
        read: Yields blocks of the sequences of a split in order, given the view's directory and the split; None for a
            view of messages.
        compare: Yields differences between a split and the run's conversations; only for a view of messages.
        identity: Returns a JSON value that identifies a shard for this view, in addition to the shard's content.
        defects: Yields a sentence for each part of the finished layout that a trainer would not accept, given the
            view's directory, its receipt and the splits.
        is_packed: Whether a row is a packed row; otherwise it is a sequence or, with `compare`, a conversation.
        file: Returns the name of the file with the rows of a shard, given the split's name, the shard's number in the
            split, and the number of shards.
        flat: Returns the layout of a file's tokens, for a view of flat arrays.
    """

    reserved = frozenset({PACKED_SFT, RUNS})
    available = VIEWS
    split_type = PackedSplit
    facts_type = ConversationViewFacts
    contents = "packed rows"
    shown_facts = ("sequences", "trained_tokens")

    write: Callable[[Sequence[PackedSplit], BlendViewWriter], None]
    read: Callable[[Path, PackedSplit], Iterator[LabeledTokens]] | None = None
    compare: Callable[[OpenedBlendView[PackedSplit], PackedSplit], Iterator[str]] | None = None
    identity: Callable[[UsedShard[PackedSftFacts]], Any] | None = None
    defects: Callable[[Path, Receipt, Sequence[PackedSplit]], Iterator[str]]
    is_packed: bool
    file: Callable[[str, int, int], str]
    flat: Callable[[ConversationViewFacts], FlatTokens] | None = None

    @property
    def row(self) -> Row:
        """The content of each row of the view."""
        if self.compare is not None:
            return "conversation"
        return "packed_row" if self.is_packed else "sequence"

    @property
    def checks(self) -> tuple[Check[OpenedBlendView[Any]], ...]:
        return CHECKS if self.compare is None else MESSAGE_CHECKS

    def identify_rows(self, shard: UsedShard[PackedSftFacts]) -> Any:
        return shard.content if self.identity is None else [shard.content, self.identity(shard)]

    def write_files(self, splits: Sequence[PackedSplit], writer: BlendViewWriter) -> None:
        self.write(splits, writer)

    def measure(self, splits: Sequence[PackedSplit], store: ArtifactStore) -> ConversationViewFacts:
        return ConversationViewFacts(
            view=self.name,
            rows={s.split: s.sum_fact(_ROW_FACTS[self.row]) for s in splits},
            sequences={s.split: s.sum_fact("sequences") for s in splits},
            tokens={s.split: s.sum_fact("tokens") for s in splits},
            trained_tokens={s.split: s.sum_fact("trained_tokens") for s in splits},
        )

    def find_layout_defects(self, opened: OpenedBlendView[PackedSplit]) -> Iterator[str]:
        return self.defects(opened.directory, opened.receipt, opened.splits)

    def find_differences(self, opened: OpenedBlendView[PackedSplit], split: PackedSplit) -> Iterator[str]:
        if self.compare is not None:
            return self.compare(opened, split)
        assert self.read is not None, "a view of tokens"
        return _find_sequence_difference(self.read(opened.directory, split), opened.store, split)

    def describe(self, facts: ConversationViewFacts) -> tuple[str, Mapping[str, int]]:
        rows, sequences, in_loss = (sum(n.values()) for n in (facts.rows, facts.sequences, facts.trained_tokens))
        if self.compare is not None:
            sentence = f"{count_of(rows, 'conversation')}, equal to the run's source rows."
            return sentence, {"conversations": rows}
        sentence = f"{count_of(sequences, 'sequence')}, {count_of(in_loss, 'trained token')}"
        return f"{sentence}, equal to the run's packed rows.", {"sequences": sequences, "trained_tokens": in_loss}

    def compute_row_offsets(self, shard: UsedShard[PackedSftFacts], _: ArtifactStore) -> Sequence[int]:
        return range(getattr(shard.facts, _ROW_FACTS[self.row]) + 1)

    def find_file(self, split: PackedSplit, index: int) -> tuple[str, int]:
        return self.file(split.split, index, len(split.shards)), index


def _find_sequence_difference(
    blocks: Iterator[LabeledTokens], store: ArtifactStore, split: PackedSplit
) -> Iterator[str]:
    """Yield a sentence about the first sequence that differs from the packed rows, or about a wrong number of tokens.

    If all sequences are equal, their trained tokens are counted and compared with the facts of the shards.
    """
    in_loss = 0

    def count_trained() -> Iterator[LabeledTokens]:
        nonlocal in_loss
        for block in blocks:
            in_loss += int((block.labels != UNTRAINED).sum())
            yield block

    difference = find_first_difference(count_trained(), _read_packed_sequences(store, split))
    if difference is not None:
        number, part = difference
        if part in ("fewer", "more"):
            yield f"{split.split}: has {part} sequences than the run"
        else:
            yield f"{split.split}: sequence {number} differs from the run's sequence in its {part}"
    elif in_loss != split.sum_fact("trained_tokens"):
        yield (
            f"{split.split}: has {count_of(in_loss, 'trained token')}, but the run has "
            f"{split.sum_fact('trained_tokens'):,}"
        )


def _read_packed_sequences(store: ArtifactStore, split: PackedSplit) -> Iterator[LabeledTokens]:
    """Yield the packed sequences, with labels that are computed independently of the code that writes views."""
    for number in range(len(split.shards)):
        for rows in split.open(store, number):
            _, ends = rows.bounds()
            labels = np.full(len(rows.tokens), UNTRAINED, np.int32)
            # Position i of the mask belongs to token i + 1 of the same sequence, so the last position of a sequence
            # belongs to no token.
            is_trained = rows.required_mask != 0
            is_trained[ends - 1] = False
            positions = np.flatnonzero(is_trained) + 1
            labels[positions] = rows.tokens[positions]
            yield LabeledTokens(ids=rows.tokens, labels=labels, lengths=rows.lengths)


CHECKS: tuple[Check[OpenedBlendView[Any]], ...] = (
    Check(
        "matches_packed_rows",
        "Every sequence has the same ids and labels as in the run's packed rows.",
        matches_run,
    ),
    LAYOUT_VALID,
)
MESSAGE_CHECKS: tuple[Check[OpenedBlendView[Any]], ...] = (
    Check(
        "matches_conversations",
        "The rows are exactly the run's conversations, with the messages of their source rows.",
        matches_run,
    ),
    LAYOUT_VALID,
)
