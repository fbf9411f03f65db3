"""The conversations from which the sequences of a packed shard were rendered, read again from the source files.

A shard's `origins.npy` has the source and row of each sequence. The sources must match the digests in the shard's
snapshot. Messages that rendering left out are removed from a conversation. Conversations are in the order of the
sources and their rows, not of the packed rows, so that a different packing does not change a view of messages.

Entry points: `list_used_rows`, `UsedConversations`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dataprep_assets.errors import IntegrityError, count_of
from dataprep_assets.formats.row_origins import ORIGINS, Origins, parse_origins
from dataprep_assets.integrity.artifacts import ArtifactHandle, ArtifactStore
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.blend_snapshot import build_shard_fetches, load_shard_parts
from dataprep_assets.pipelines.blend.plan.fields import get_conversation_fields
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan, load_blend_plan
from dataprep_assets.pipelines.blend.sft.chat_plan import load_conversation_renderer
from dataprep_assets.pipelines.blend.sft.packed_sft import PACKED_SFT, build_chat_plan
from dataprep_assets.pipelines.blend.sft.shard import PackedSftFacts
from dataprep_assets.stores.files import require_digest
from dataprep_assets.stream.engine_certificate import load_certificate
from dataprep_assets.stream.token_stream import SourcePart, fetch_missing
from dataprep_assets.stream.tokenizer import load_declared_tokenizer
from dataprep_assets.tokenization.chat.messages import Conversation, Refusal, read_conversation
from dataprep_assets.tokenization.chat.rendering import AFTER_LAST, ConversationRenderer, keep_used_part


@dataclass(frozen=True, slots=True)
class UsedConversation:
    """A conversation of a shard with only its used messages, and its source file and row."""

    conversation: Conversation
    file: str
    row: int


def list_used_rows(origins: Origins) -> Origins:
    """Return the source ordinal and row of each conversation of a shard, in order: shape `(conversations, 2)`."""
    return np.unique(origins[:, :2], axis=0)


class UsedConversations:
    """Reader of the conversations in the shards of a blend's plan."""

    def __init__(self, blend: BlendDeclaration, store: ArtifactStore) -> None:
        self._blend, self._store = blend, store

    @cached_property
    def _plan(self) -> BlendPlan:
        return load_blend_plan(self._blend, self._store)

    def read(self, partition: str) -> Iterator[UsedConversation]:
        """Yield the conversations of a shard in the order of its sources and their rows.

        Raises CorruptSourceError if a source does not match the snapshot, and IntegrityError if a conversation of the
        shard is no longer in its source.
        """
        blend, store, plan = self._blend, self._store, self._plan
        handle = ArtifactHandle.from_store(store, blend.artifact(PACKED_SFT, partition))
        facts = PackedSftFacts.from_receipt(handle.receipt)
        if facts.empty:
            return
        parts = load_shard_parts(blend, store, plan, partition)
        if any(not part.path.exists() for part in parts):
            fetch_missing(parts, build_shard_fetches(blend, plan, [partition])[partition])
        rows = list_used_rows(parse_origins(handle.read(ORIGINS), 3, f"{handle.artifact}/{ORIGINS}"))
        # Render only if messages were left out for a reason other than `AFTER_LAST`, because messages after the last
        # answer can be found without a template.
        is_rendered = bool(facts.conversations_cut.keys() - {AFTER_LAST})
        renderer = self._load_renderer(partition) if is_rendered else None
        for part in sorted(parts, key=lambda part: part.ordinal):
            yield from self._read_part(part, set(rows[rows[:, 0] == part.ordinal, 1].tolist()), partition, renderer)

    def _load_renderer(self, partition: str) -> ConversationRenderer:
        blend = self._blend
        plan = build_chat_plan(blend, load_certificate(blend, self._store), self._plan.find_shard(partition)[0].dataset)
        return load_conversation_renderer(plan, load_declared_tokenizer(blend.required_tokenizer))

    def _read_part(
        self, part: SourcePart, rows: set[int], partition: str, renderer: ConversationRenderer | None
    ) -> Iterator[UsedConversation]:
        """Yield the conversations in these rows of a file.

        Raises CorruptSourceError if the file has changed, and IntegrityError for a row that is missing or is not a
        conversation.
        """
        options = self._blend.sft_options
        fields, choices = get_conversation_fields(options, self._plan.find_shard(partition)[0].dataset), options.choices
        fields = replace(fields, rewriting=self._blend.rewriting)
        is_strict = choices.inline_reasoning == "refuse"
        reader = part.read_rows(as_json=choices.reads_json)
        for block in reader:
            for number, row in zip(block.numbers, block.rows, strict=True):
                if number not in rows:
                    continue
                rows.remove(number)
                conversation = read_conversation(row, fields, choices)
                if isinstance(conversation, Refusal):
                    raise IntegrityError(
                        f"{part.label}: row {number} is in {PACKED_SFT}/{partition}, but is not a conversation: "
                        f"{conversation}. Run the dataset again"
                    )
                if not is_strict:
                    conversation = _cut_after_answers(conversation, renderer)
                yield UsedConversation(conversation, part.label, number)
        # Verify the digest at the end, because it is known only after a complete read of the file.
        require_digest(part.label, part.digests.digest_of(reader.sha256), part.sha256, "its snapshot")
        if rows:
            raise IntegrityError(
                f"{part.label}: missing {count_of(len(rows), 'row')} of {PACKED_SFT}/{partition} (first: row "
                f"{min(rows)}). Run the dataset again"
            )


def _cut_after_answers(conversation: Conversation, renderer: ConversationRenderer | None) -> Conversation:
    """Return a conversation without the messages after its last used answer."""
    messages = conversation.messages
    if renderer is not None:
        rendered = keep_used_part(renderer.render(conversation))
        if isinstance(rendered, Refusal):
            raise IntegrityError(f"a packed conversation can no longer be used: {rendered}. Run the dataset again")
        messages = messages[: rendered.messages]
    answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    end = answers[-1] + 1 if answers else len(messages)
    return conversation if end == len(conversation.messages) else replace(conversation, messages=messages[:end])
