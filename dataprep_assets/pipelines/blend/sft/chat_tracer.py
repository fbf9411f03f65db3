"""Tracing of packed conversations: from a packed row or a view's row to its source row and message, and back.

Entry point: `ChatTracer`.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.trace.place import TokenRange
from dataprep_assets.engine.trace.sample import MAX_TOKENS, SampledRow, build_part
from dataprep_assets.engine.trace.trace import Trace, TracedMessage, TraceQuery
from dataprep_assets.errors import ConfigError, DataprepError, NotFoundError, count_of
from dataprep_assets.formats.row_origins import ORIGINS, Origins
from dataprep_assets.integrity.artifacts import ArtifactHandle
from dataprep_assets.pipelines.blend.sft.message_tokens import LocatedMessages, MessageTokens
from dataprep_assets.pipelines.blend.sft.shard import PACKED, PackedSftFacts
from dataprep_assets.pipelines.blend.sft.used_conversations import list_used_rows
from dataprep_assets.pipelines.blend.sft.view import ConversationView, ConversationViewFacts, FlatTokens, PackedSplit
from dataprep_assets.pipelines.blend.shard_tracer import ShardTracer, TracedShard
from dataprep_assets.pipelines.blend.view import ViewRows
from dataprep_assets.stream.tokenizer import load_declared_tokenizer, require_same_tokenizer
from dataprep_assets.stream.traced_rows import TracedRows, TracedSegment
from dataprep_assets.tokenization.chat.message_spans import TEMPLATE
from dataprep_assets.tokenization.token_texts import TokenTexts


class _PackedShard(TracedShard):
    """A finished shard of packed conversations, opened for tracing.

    For the tracer, a row is a sequence, but queries name packed rows.
    """

    def __init__(self, handle: ArtifactHandle, unit: str) -> None:
        self.facts = facts = PackedSftFacts.from_receipt(handle.receipt)
        super().__init__(handle, unit, facts.sources)
        self.rows = TracedRows(handle, None if facts.empty else PACKED, ORIGINS, 3)

    @property
    def count(self) -> int:
        return len(self.rows)

    @property
    def sampled_count(self) -> int:
        return self.facts.sequences

    @cached_property
    def origins(self) -> Origins:
        return self.rows.origins

    @cached_property
    def conversations(self) -> Origins:
        """The ordinal of the source and the source row of each conversation, in the order of a view of messages."""
        return list_used_rows(self.origins)

    def find_conversation(self, sequence: int) -> int:
        """Return the number of the conversation to which a sequence belongs."""
        is_same = (self.conversations == self.origins[sequence, :2]).all(axis=1)
        return int(np.argmax(is_same))

    def find_sequence(self, conversation: int) -> int:
        """Return the number of a conversation's first sequence."""
        is_same = (self.origins[:, :2] == self.conversations[conversation]).all(axis=1)
        return int(np.argmax(is_same))

    def locate(self, sequence: TracedSegment) -> TokenRange:
        """Return the location of a sequence in the shard's file."""
        return TokenRange(
            artifact=str(self.handle.artifact),
            file=PACKED,
            start=sequence.start,
            stop=sequence.stop,
            at={"row": sequence.row, "sequence": sequence.number},
        )


class ChatTracer(ShardTracer[_PackedShard, ConversationView]):
    """Tracer of packed conversations, which traces all sequences of a conversation together, by its first sequence."""

    view_kind = ConversationView
    field = "packed_row"
    noun = "packed row"
    subject = "conversation"
    absence = "the row does not exist, or was left out to meet the weights"
    _located: tuple[tuple[str, int], LocatedMessages] | None = None

    def _open(self, handle: ArtifactHandle, unit: str) -> _PackedShard:
        return _PackedShard(handle, unit)

    def _select_shard_rows(self, shard: _PackedShard, number: int) -> Sequence[int]:
        # Remove duplicates, because a packed row may have several sequences of one conversation.
        sources = dict.fromkeys(shard.find_source(sequence) for sequence in shard.rows.segments(number))
        return [shard.find_rows(*source)[0] for source in sources]

    def _select_view_rows(self, view: ConversationView, shard: _PackedShard, number: int) -> Sequence[int]:
        if view.row == "packed_row":
            return self._select_shard_rows(shard, number)
        return [shard.find_sequence(number) if view.row == "conversation" else number]

    def _select_source_rows(self, shard: _PackedShard, file: str, row: int) -> Sequence[int]:
        return shard.find_rows(file, row)[:1]

    def find(self, question: TraceQuery, *, decode: bool = True) -> list[Trace]:
        is_shown = decode and not self._blend.sensitive
        if question.message is not None:
            return self._trace_messages(self._find_rows(question), question.message, is_shown=is_shown)
        if question.token is not None and question.field != "token":
            return [self._trace_token(question, question.token, is_shown=is_shown)]
        return super().find(question, decode=decode)

    def _sample_rows(
        self, split: PackedSplit, shard: _PackedShard, index: int, numbers: Sequence[int]
    ) -> Iterator[SampledRow]:
        require_same_tokenizer(shard.handle.receipt, load_declared_tokenizer(self._blend.required_tokenizer))
        file, record = split.open(self._store, index), split.shards[index].file
        note = self._prefetch_messages(shard, numbers)
        for number in numbers:
            segment, (source, row) = shard.rows.segment(number), shard.find_source(number)
            block = file.block(segment.row, segment.row + 1)
            start = segment.unpadded_start  # because the file was opened without padding
            tokens = slice(start, start + len(segment.ids))
            # Position i of the mask is for token i + 1 of the sequence, so nothing predicts the first token.
            trained_mask = np.zeros(len(segment.ids), np.bool_)
            trained_mask[1:] = block.required_mask[tokens][:-1] == 1
            part = build_part("conversation", block.tokens[tokens], self._token_texts.split, trained_mask=trained_mask)
            owners, roles, notes = list[int](), list[str | None](), [note] if note else []
            sequences = shard.find_rows(source, row)
            if not note:
                try:
                    located = self._locate_messages(shard, sequences)
                    owners = located.owners[int(shard.origins[number, 2])][:MAX_TOKENS].tolist()
                    roles = [None if owner == TEMPLATE else located.messages[owner]["role"] for owner in owners]
                except (DataprepError, OSError) as error:
                    notes = [_describe_unknown_roles(error)]
            if len(sequences) > 1:
                count = count_of(len(sequences), "sequence")
                notes.append(f"The conversation is in {count}, which train different answers.")
            yield SampledRow(
                split=shard.unit,
                file=source,
                row=row,
                partition=shard.partition,
                locations=(replace(shard.locate(segment), artifact=str(record.artifact), file=record.record.path),),
                parts=(replace(part, messages=owners, roles=roles),),
                notes=notes,
            )

    def _prefetch_messages(self, shard: _PackedShard, numbers: Sequence[int]) -> str:
        """Read the conversations of some sequences; return a sentence if they cannot be read."""
        rows = defaultdict[int, set[int]](set)
        for ordinal, row in shard.origins[list(numbers), :2].tolist():
            rows[ordinal].add(row)
        try:
            self._message_tokens.prefetch(shard.partition, rows)
        except (DataprepError, OSError) as error:
            return _describe_unknown_roles(error)
        return ""

    @cached_property
    def _token_texts(self) -> TokenTexts:
        return TokenTexts(load_declared_tokenizer(self._blend.required_tokenizer).decode)

    @cached_property
    def _message_tokens(self) -> MessageTokens:
        return MessageTokens(self._blend, self._store)

    def _locate_messages(self, shard: _PackedShard, sequences: Sequence[int]) -> LocatedMessages:
        """Return the messages of a conversation and the message of each token, given all its sequences."""
        key = (shard.partition, sequences[0])
        # Cache the last conversation, because consecutive queries are usually about tokens of the same conversation.
        if self._located is None or self._located[0] != key:
            ordinal, row = shard.origins[sequences[0], :2].tolist()
            ids_by_number = {
                int(shard.origins[sequence, 2]): shard.rows.segment(sequence).ids for sequence in sequences
            }
            self._located = (key, self._message_tokens.locate(shard.partition, ordinal, row, ids_by_number))
        return self._located[1]

    def _trace_token(self, query: TraceQuery, token: int, *, is_shown: bool) -> Trace:
        """Return the trace of a token in a packed row, or in a row of a view of tokens."""
        shard, sequence, position = self._find_token(query, token)
        sequences = shard.find_rows(*shard.find_source(sequence))
        located_messages = self._locate_messages(shard, sequences)
        index = int(located_messages.owners[int(shard.origins[sequence, 2])][position])
        message = (
            TracedMessage(token=token)
            if index == TEMPLATE
            else TracedMessage(index=index, role=located_messages.messages[index]["role"], token=token)
        )
        return replace(self._trace_row(shard, sequences[0], is_shown=is_shown), message=message)

    def _find_token(self, query: TraceQuery, token: int) -> tuple[_PackedShard, int, int]:
        """Return the shard, the number of the sequence, and the position in the sequence of a row's token."""
        is_file, is_packed = query.view is None, True
        if query.view is not None and query.sample is not None:
            view, partition, number = self._find_view_row(query.view, query.split, query.sample)
            shard, row = self._shards[partition], view.row
            if row == "conversation":
                raise ConfigError(
                    f"trace: rows of the view {query.view} have no tokens. Set `message` instead of `token`"
                )
            is_packed = row == "packed_row"
            sequences = shard.rows.segments(number) if is_packed else range(number, number + 1)
        else:
            assert query.packed_row is not None, "checked by the query"
            self._find_rows(query)  # raises an error if the row is out of range
            shard = self._open_shard(query.shard)
            sequences = shard.rows.segments(query.packed_row)
        end = 0
        for sequence in sequences:
            segment = shard.rows.segment(sequence)
            start = segment.start if is_file else segment.unpadded_start if is_packed else 0
            if start <= token < start + len(segment.ids):
                return shard, sequence, token - start
            end = start + len(segment.ids)
        raise NotFoundError(f"trace: token {token} is out of range or padding: the row's last token is {end - 1}")

    def _trace_messages(self, rows: Sequence[tuple[_PackedShard, int]], index: int, *, is_shown: bool) -> list[Trace]:
        """Return a trace of a message for each conversation in which it has tokens, located by only these tokens."""
        traces, message_count = list[Trace](), 0
        for shard, number in rows:
            sequences = shard.find_rows(*shard.find_source(number))
            located_messages = self._locate_messages(shard, sequences)
            message_count = max(message_count, len(located_messages.messages))
            if 0 <= index < len(located_messages.messages):
                trace = self._trace_message(shard, sequences, located_messages, index, is_shown=is_shown)
                traces += [trace] if trace.places else []
        if not traces:
            raise NotFoundError(
                f"trace: message {index} has no tokens. The conversation has "
                f"{count_of(message_count, 'message')} (counted from 0), and a template may leave some out"
            )
        return traces

    def _trace_message(
        self,
        shard: _PackedShard,
        sequences: Sequence[int],
        located_messages: LocatedMessages,
        index: int,
        *,
        is_shown: bool,
    ) -> Trace:
        """Return the trace of a message, located by only the message's tokens."""
        ranges, texts = list[TokenRange](), list[str]()
        for sequence in sequences:
            segment = shard.rows.segment(sequence)
            for start, stop in _find_runs(located_messages.owners[int(shard.origins[sequence, 2])] == index):
                ranges += [
                    replace(token_range, start=token_range.start + start, stop=token_range.start + stop)
                    for token_range in self._find_places(shard, segment, sequence)
                ]
                if is_shown:
                    texts.append(
                        load_declared_tokenizer(self._blend.required_tokenizer).decode(segment.ids[start:stop])
                    )
        if ranges:
            ranges += [
                replace(row, at={**row.at, "message": index}) for row in self._find_messages(shard, sequences[0])
            ]
        return replace(
            self._trace_row(shard, sequences[0], is_shown=False),
            places=tuple(ranges),
            # Remove duplicates, because each sequence of a conversation repeats the earlier messages.
            text="\n".join(dict.fromkeys(texts)) if is_shown else None,
            message=TracedMessage(index=index, role=located_messages.messages[index]["role"]),
        )

    def _trace_row(self, shard: _PackedShard, number: int, *, is_shown: bool) -> Trace:
        file, row = shard.find_source(number)
        sequences = shard.find_rows(file, row)
        segments = [shard.rows.segment(sequence) for sequence in sequences]
        decode: Any = load_declared_tokenizer(self._blend.required_tokenizer).decode if is_shown else None
        return Trace(
            dataset=self._blend.dataset,
            split=shard.unit,
            document=sequences[0],
            file=file,
            row=row,
            tokens=sum(len(sequence.ids) for sequence in segments),
            places=(
                *(
                    token_range
                    for sequence, segment in zip(sequences, segments, strict=True)
                    for token_range in self._find_places(shard, segment, sequence)
                ),
                *self._find_messages(shard, sequences[0]),
            ),
            text="\n".join(decode(sequence.ids) for sequence in segments) if is_shown else None,
        )

    def _find_places(self, shard: _PackedShard, segment: TracedSegment, sequence: int) -> Iterator[TokenRange]:
        """Yield the locations of a sequence in its shard and in each view of tokens."""
        yield shard.locate(segment)
        for view in self._views:
            if view.view.row == "conversation":
                continue
            is_packed, flat_layout = view.view.row == "packed_row", _find_flat_layout(view)
            start = segment.unpadded_start if is_packed else 0
            if flat_layout is not None:
                start = int(shard.rows.lengths[:sequence].sum()) + sequence * flat_layout.added
            for place in view.find(shard.partition, segment.row if is_packed else sequence):
                yield TokenRange(
                    artifact=str(view.artifact),
                    file=place.file,
                    start=start,
                    stop=start + len(segment.ids),
                    itemsize=flat_layout.itemsize if flat_layout is not None else None,
                    at={"sample": place.sample},
                )

    def _find_messages(self, shard: _PackedShard, sequence: int) -> Iterator[TokenRange]:
        """Yield the locations of a sequence's conversation in each view of messages."""
        for view in self._views:
            if view.view.row == "conversation":
                for place in view.find(shard.partition, shard.find_conversation(sequence)):
                    yield TokenRange(
                        artifact=str(view.artifact), file=place.file, start=0, stop=0, at={"sample": place.sample}
                    )


def _describe_unknown_roles(error: Exception) -> str:
    return f"Roles are not shown, because they are found by rendering the source row again: {error}"


def _find_flat_layout(view: ViewRows[ConversationView]) -> FlatTokens | None:
    return None if view.view.flat is None else view.view.flat(ConversationViewFacts.from_receipt(view.receipt))


def _find_runs(is_member: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield the start and the end (exclusive) of each run of true values."""
    edges = np.flatnonzero(np.diff(is_member.astype(np.int8), prepend=np.int8(0), append=np.int8(0)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
