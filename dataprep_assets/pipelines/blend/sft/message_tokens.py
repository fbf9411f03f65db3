"""Assignment of the tokens of packed conversations to messages, by rendering their source rows again.

Entry point: `MessageTokens`.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import IntegrityError, NotFoundError, count_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.blend_snapshot import build_shard_fetches, load_shard_parts
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan, load_blend_plan
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatPlan
from dataprep_assets.pipelines.blend.sft.packed_sft import build_chat_plan
from dataprep_assets.pipelines.blend.sft.spool import cut_lengths, load_tools
from dataprep_assets.stream.engine_certificate import load_certificate
from dataprep_assets.stream.token_stream import fetch_missing
from dataprep_assets.tokenization.chat.message_spans import MessageLocator, MessageNotFoundError
from dataprep_assets.tokenization.chat.messages import Conversation, Refusal, read_conversation


class LocatedMessages(NamedTuple):
    """The messages of a conversation, and the index of each token's message.

    `owners` maps the number of a sequence to the indexes. The index of a token that the template writes is `TEMPLATE`.
    """

    messages: list[dict[str, Any]]
    owners: dict[int, NDArray[np.int64]]


class MessageTokens:
    """Search for the message of each token in a blend's shards, which renders the conversations again."""

    def __init__(self, blend: BlendDeclaration, store: ArtifactStore) -> None:
        self._blend, self._store = blend, store
        self._plans: dict[str, ChatPlan] = {}
        # The conversations that `prefetch` read: shard, ordinal of the source and row → label and conversation.
        self._prefetched: dict[tuple[str, int, int], tuple[str, Conversation]] = {}

    @cached_property
    def _plan(self) -> BlendPlan:
        return load_blend_plan(self._blend, self._store)

    def locate(
        self, partition: str, ordinal: int, row: int, ids_by_number: Mapping[int, NDArray[np.int32]]
    ) -> LocatedMessages:
        """Return the messages of a shard's source row, and the message of each token of its sequences.

        `ids_by_number` has the ids of the shard's sequences, by their number in the conversation. Raises IntegrityError
        if the source row now has different ids, and NotFoundError if the text of a message cannot be located.
        """
        label, conversation = self._read(partition, ordinal, row)
        plan = self._load_chat_plan(partition)
        renderer, encoder, _ = load_tools(plan)
        try:
            sequences = MessageLocator(renderer, encoder).locate(conversation)
        except MessageNotFoundError as error:
            subject = "messages cannot" if error.message is None else f"message {error.message} cannot"
            raise NotFoundError(
                f"trace: row {row} of {label}: {subject} be located: {error.reason}. Trace the row without `token` or "
                "`message`"
            ) from None
        if isinstance(sequences, Refusal):
            raise self._build_changed_row_error(label, row, f"can no longer be used: {sequences}")
        owners = {}
        for number, ids in ids_by_number.items():
            if number >= len(sequences):
                raise self._build_changed_row_error(label, row, f"now has only {count_of(len(sequences), 'sequence')}")
            sequence = sequences[number]
            (length,), _ = cut_lengths(plan, np.array([len(sequence.ids)]))
            if not np.array_equal(sequence.ids[:length], ids):
                raise self._build_changed_row_error(label, row, "now has different ids")
            owners[number] = sequence.owners[:length]
        return LocatedMessages(conversation.messages, owners)

    def prefetch(self, partition: str, rows: Mapping[int, set[int]]) -> None:
        """Read the conversations of some rows of a shard (ordinal of the source → rows) in one pass over each file.

        Raises the errors of `locate`.
        """
        self._prefetched = {}
        for ordinal, numbers in rows.items():
            for label, number, conversation in self._read_rows(partition, ordinal, numbers):
                self._prefetched[partition, ordinal, number] = label, conversation

    @staticmethod
    def _build_changed_row_error(label: str, row: int, changed_part: str) -> IntegrityError:
        return IntegrityError(
            f"trace: row {row} of {label} {changed_part}. The source, tokenizer or template has changed since the "
            "shard was "
            "built. Restore it, or run the dataset again"
        )

    def _load_chat_plan(self, partition: str) -> ChatPlan:
        dataset = self._plan.find_shard(partition)[0].dataset
        if dataset.name not in self._plans:
            certificate = load_certificate(self._blend, self._store)
            self._plans[dataset.name] = build_chat_plan(self._blend, certificate, dataset)
        return self._plans[dataset.name]

    def _read(self, partition: str, ordinal: int, row: int) -> tuple[str, Conversation]:
        """Return the label of a source file, and the conversation in one of its rows.

        Raises IntegrityError if the row no longer exists, or is no longer a conversation.
        """
        if (prefetched := self._prefetched.get((partition, ordinal, row))) is not None:
            return prefetched
        for label, _, conversation in self._read_rows(partition, ordinal, {row}):
            return label, conversation
        parts = load_shard_parts(self._blend, self._store, self._plan, partition)
        label = next((part.label for part in parts if part.ordinal == ordinal), partition)
        raise self._build_changed_row_error(label, row, "no longer exists")

    def _read_rows(self, partition: str, ordinal: int, rows: set[int]) -> Iterator[tuple[str, int, Conversation]]:
        """Yield the label of the source file, the number and the conversation of each of these rows that exists."""
        parts = [p for p in load_shard_parts(self._blend, self._store, self._plan, partition) if p.ordinal == ordinal]
        if any(not part.path.exists() for part in parts):
            fetch_missing(parts, build_shard_fetches(self._blend, self._plan, [partition])[partition])
        plan = self._load_chat_plan(partition)
        for part in parts:
            for block in part.read_rows(only=rows, as_json=plan.choices.reads_json):
                for number, values in zip(block.numbers, block.rows, strict=True):
                    if number in rows:
                        conversation = read_conversation(values, plan.fields, plan.choices)
                        if isinstance(conversation, Refusal):
                            raise self._build_changed_row_error(
                                part.label, number, f"is no longer a conversation: {conversation}"
                            )
                        yield part.label, number, conversation
