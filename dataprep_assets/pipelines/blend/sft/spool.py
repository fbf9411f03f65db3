"""Build of the spool of a source file: the sequences of its conversations, encoded and masked but not yet packed.

A spool is a small artifact that is stored next to its shard. Its key covers everything that determines its bytes: the
template's text, the tokenizer, the source's digest and the policies. The next run therefore reuses the spools of a
killed run, unless settings have changed. A spool is deleted when its shard is packed.

Its files are `tokens.bin` (int32), `masks.bin` (uint8, aligned with the labels), `lengths.bin` (uint32), `origins.bin`
(int64 pairs: row of the source file, number of the sequence in its conversation), `row_ids.bin` (int64 triples: source
ordinal, row, and hash of every row that was read), and `quarantine.jsonl` (file, row, byte and reason of every dropped
row that is not retracted).
"""

import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.documents import sample_rows
from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.errors import TokenizerError
from dataprep_assets.execution.run_task import report_work
from dataprep_assets.formats.packed_rows import view_ids_as_int32
from dataprep_assets.integrity.artifacts import Artifact, LocalArtifacts
from dataprep_assets.integrity.receipt import Ledger, Receipt
from dataprep_assets.pipelines.blend.removal.row_ids import ReadRows
from dataprep_assets.pipelines.blend.screening.reasons import EMPTY, TOO_LONG
from dataprep_assets.pipelines.blend.sft.chat_plan import VERSION, ChatPlan, ChatSource, load_conversation_renderer
from dataprep_assets.pipelines.blend.sft.source_rows import SourceRows
from dataprep_assets.sources.readers.row_files import BadRecord
from dataprep_assets.sources.readers.rows import RowBlock, RowReader
from dataprep_assets.stores.files import digest_value
from dataprep_assets.stream.token_stream import ReadBytes
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import Certificate, CertifiedEncoder
from dataprep_assets.tokenization.chat.mask import ChatEncoder, align_with_labels
from dataprep_assets.tokenization.chat.messages import Refusal, read_conversation
from dataprep_assets.tokenization.chat.rendering import ConversationRenderer, RenderedConversation, keep_used_part
from dataprep_assets.tokenization.chat.row_forms import Form, remove_template_keys
from dataprep_assets.tokenization.losses import Losses, encode_or_locate, locate_row

TOKENS, MASKS, LENGTHS, ORIGINS, ROW_IDS, QUARANTINE = (
    "tokens.bin",
    "masks.bin",
    "lengths.bin",
    "origins.bin",
    "row_ids.bin",
    "quarantine.jsonl",
)
BATCH = 512
"""Number of conversations per call of the engine, which keeps it busy and needs little memory."""


class SpoolFacts(Facts):
    """Facts of a spool.

    Attributes:
        truncated: Number of kept sequences that were truncated to `max_doc_tokens`.
        truncated_to_pack_size: Number of kept sequences that were truncated to `pack_size`.
        sequences_dropped: Number of sequences dropped from kept conversations, by reason.
        conversations_cut: Number of conversations from which messages were left out, by reason.
        form: The form of the file's rows; None if there are no conversations.
        unread_keys: Number of rows per key that is not read; the key is empty if names are hidden.
    """

    sequences: int
    trained_tokens: int
    truncated: int
    truncated_to_pack_size: int
    sequences_dropped: dict[str, int]
    conversations_cut: dict[str, int]
    form: Form | None
    unread_keys: dict[str, int]


def load_tools(plan: ChatPlan) -> tuple[ConversationRenderer, ChatEncoder, int]:
    """Return a plan's renderer and encoder, and the size of its vocabulary. They are loaded once per process."""
    # Leave out everything that drops rows, because the tools do not depend on it, and a row can be traced without the
    # files of the benchmarks.
    plan = replace(plan, rules=None, screen=None, duplicates=None)
    return _load_tools(digest_value([plan.key_parts(), plan.certificate]), plan.tokenizer, _UncomparedPlan(plan))


@lru_cache(maxsize=1)
def _load_tools(
    plan_key: str, directory: Path, plan: "_UncomparedPlan"
) -> tuple[ConversationRenderer, ChatEncoder, int]:
    # Verify the digest, because the folder may have changed since the plan, or may have different files on the worker's
    # machine.
    bundle = TokenizerBundle.load(directory)
    if bundle.digest != plan.value.tokenizer_digest:
        raise TokenizerError(f"{directory}: the tokenizer changed during the run. Run the dataset again")
    certified = CertifiedEncoder(bundle, "text", Certificate.from_json(plan.value.certificate))
    encoder = ChatEncoder(bundle, certified, plan.value.structure)
    return load_conversation_renderer(plan.value, bundle), encoder, bundle.vocab_size


def cut_lengths(plan: ChatPlan, lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the length of each sequence after truncation, and whether it is kept; both have shape `(sequences,)`."""
    if plan.max_doc_tokens is not None:
        lengths = np.minimum(lengths, plan.max_doc_tokens)
    if plan.too_long == "drop":
        return lengths, lengths <= plan.pack_size
    return np.minimum(lengths, plan.pack_size), np.ones(len(lengths), np.bool_)


@dataclass(frozen=True)
class _UncomparedPlan:
    """Wrapper of a plan that compares equal to any other, so that the cache compares only the accompanying digest."""

    value: ChatPlan = field(compare=False)


def get_spool_artifact(shard: Artifact, ordinal: int) -> Artifact:
    """Return the artifact of the spool for a shard's source file."""
    return Artifact(dataset=shard.dataset, name="sft_spool", partition=f"{shard.partition}.{ordinal:08d}")


def compute_spool_key(plan: ChatPlan, source: ChatSource) -> str:
    """Return the digest of everything that determines the bytes of a spool."""
    # Include the whole retraction list, because the listed rows of the file are known only after the spool is built.
    return digest_value(
        ["sft_spool", VERSION, plan.key_parts(), source.key_parts(), plan.retractions.listed_bytes.hex()]
    )


def spool_source(plan: ChatPlan, source: ChatSource, root: Path, shard: Artifact) -> Receipt:
    """Build the spool of a source file unless it is up to date; return its receipt (a worker's task).

    `plan` determines how `source` is encoded, `root` is the folder of the spools, and `shard` is the shard's artifact.
    Raises CorruptSourceError if the file is damaged or has a different digest, and BadRecordError for a bad row if the
    policy is `fail`.
    """

    def write(staged: Path) -> WrittenFiles:
        return _SpoolBuild(plan, source, staged).run()

    recipe = Recipe(
        artifact=get_spool_artifact(shard, source.ordinal),
        key=compute_spool_key(plan, source),
        version=VERSION,
        sources={
            source.label: source.sha256,
            "tokenizer": plan.tokenizer_digest,
            "chat_template": plan.template.digest,
        },
    )
    return ensure_built(recipe, LocalArtifacts(root), write)[0]


class _SpoolBuild:
    """Build of a spool, which encodes one file and counts the outcomes of its rows."""

    def __init__(self, plan: ChatPlan, source: ChatSource, staged: Path) -> None:
        self._plan, self._source, self._staged = plan, source, staged
        self._renderer, self._encoder, self._vocab_size = load_tools(plan)
        self._losses = Losses(self._encoder.bundle, "text")
        self._ids = ReadRows(plan.retractions)
        self._read_source_rows = SourceRows(plan, source, read_conversation, self._ids)
        # Count only dropped sequences of kept conversations here, because a dropped conversation is counted as a whole.
        self._sequences_dropped: Counter[str] = Counter()
        self._cut: Counter[str] = Counter()
        self._files: dict[str, BinaryIO] = {}
        self._rows = self._blank = self._conversations = self._literals = self._characters = 0
        self._truncated = self._clamped = self._sequences = self._tokens = self._trained = self._sampled = 0
        # Begin with an empty range of ids, which the first ids replace.
        self._low, self._high = 1 << 31, -1

    def run(self) -> WrittenFiles:
        """Write the spool's files; return the facts for its receipt."""
        source, rows = self._source, self._read_source_rows
        with ExitStack() as stack:
            reader = stack.enter_context(rows.open())
            for name in (TOKENS, MASKS, LENGTHS, ORIGINS):
                self._files[name] = stack.enter_context(open(self._staged / name, "wb"))
            self._read_rows(reader)
        self._ids.table.tofile(self._staged / ROW_IDS)
        if rows.quarantine:
            (self._staged / QUARANTINE).write_bytes(b"".join(rows.quarantine))
        return WrittenFiles(
            inputs={source.label: source.sha256, "tokenizer": self._plan.tokenizer_digest},
            facts=SpoolFacts(
                sequences=self._sequences,
                trained_tokens=self._trained,
                truncated=self._truncated,
                truncated_to_pack_size=self._clamped,
                sequences_dropped=dict(sorted(self._sequences_dropped.items())),
                conversations_cut=dict(sorted(self._cut.items())),
                form=rows.form,
                unread_keys=remove_template_keys(rows.unread, self._plan.template.text),
            ),
            ledger=self._build_ledger(reader.bytes_read),
        )

    def _read_rows(self, reader: RowReader) -> None:
        read_bytes, cpu_before = ReadBytes(self._source, reader), time.process_time()
        for block in reader:
            tokens, conversations = self._tokens, self._conversations
            for start in range(0, len(block.rows), BATCH):
                self._encode(block, start)
            self._drop_bad_rows(block)
            cpu_now = time.process_time()
            report_work(
                tokens=self._tokens - tokens,
                documents=self._conversations - conversations,
                source_bytes=read_bytes.take(),
                cpu_ms=int((cpu_now - cpu_before) * 1000),
            )
            cpu_before = cpu_now

    def _drop_bad_rows(self, block: RowBlock) -> None:
        self._rows += len(block.rows) + len(block.bad)
        self._blank += block.blank_lines
        for bad_row in block.bad:
            self._read_source_rows.drop(bad_row)

    def _encode(self, block: RowBlock, start: int) -> None:
        """Render, encode, mask and write a batch of a block's rows, beginning at `start`."""
        conversations: list[RenderedConversation] = []
        indexes: list[int] = []
        batch = slice(start, start + BATCH)
        for index, row in enumerate(self._read_source_rows.read(block.rows[batch], block.numbers[batch]), start):
            rendered = row if isinstance(row, Refusal) else keep_used_part(self._renderer.render(row))
            if isinstance(rendered, Refusal):
                bad_row = BadRecord(block.numbers[index], block.offsets[index], rendered.reason)
                self._read_source_rows.drop(bad_row, rendered)
            else:
                self._cut.update(rendered.cuts)
                conversations.append(rendered)
                indexes.append(index)
        # The sequences of the batch are concatenated. `counts` has the number of sequences of each row, and `offsets`
        # has the position at which each sequence begins.
        encoded = encode_or_locate(
            self._encoder.encode,
            conversations,
            self._encoder.bundle.name,
            lambda position: locate_row(self._source.label, block.numbers[indexes[position]]),
        )
        # Exclude conversations with special tokens in messages, because their chunks contain placeholders instead of
        # these tokens, so the text of the chunks is not the encoded text.
        bare = (chunks for r in conversations if r.mark is None for chunks in r.sequences)
        self._losses.count([chunk.text for chunks in bare for chunk in chunks], encoded.tokens)
        counts = np.array([len(r.sequences) for r in conversations], np.int64)
        rows = np.array([block.numbers[i] for i in indexes], np.int64)
        # Recheck before truncation, because the reference encodes whole sequences.
        self._recheck_sample(conversations, rows, counts, encoded.tokens, encoded.offsets)
        tokens, trained_mask, offsets = encoded.tokens, encoded.trained, encoded.offsets
        self._literals += sum(r.mark is not None for r in conversations)
        self._characters += sum(len(chunk.text) for r in conversations for chunks in r.sequences for chunk in chunks)
        lengths = np.diff(offsets)
        new_lengths, fits = cut_lengths(self._plan, lengths)
        if not np.array_equal(new_lengths, lengths):
            # Keep the tokens whose position in their sequence is less than the new length of the sequence.
            positions = np.arange(len(tokens)) - np.repeat(offsets[:-1], lengths)
            is_inside = positions < np.repeat(new_lengths, lengths)
            tokens, trained_mask = tokens[is_inside], trained_mask[is_inside]
            offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(new_lengths)])
        # Align the mask after truncation, because the last remaining token of a sequence predicts no label.
        mask = align_with_labels(trained_mask, offsets)
        # Count per sequence, because a cumulative sum over all labels would need 8 bytes per byte of the mask.
        per_sequence = np.array([np.count_nonzero(mask[a:b]) for a, b in pairwise(offsets.tolist())], np.int64)
        keeps_untrained = self._plan.choices.untrained == "kept"
        keep = fits & ((np.diff(offsets) > 0) if keeps_untrained else (per_sequence > 0))
        reasons = np.where(fits, EMPTY, TOO_LONG)
        self._count_conversations(block, indexes, counts, keep, reasons)
        self._count_cuts(lengths[keep], new_lengths[keep])
        # Also number dropped sequences, because a sequence's number is its position in the conversation.
        sequence_numbers = np.arange(len(keep)) - np.repeat(np.cumsum(counts) - counts, counts)
        self._write(tokens, mask, np.diff(offsets), np.stack([np.repeat(rows, counts), sequence_numbers], axis=1), keep)
        self._trained += int(per_sequence[keep].sum())

    def _count_cuts(self, lengths: NDArray[np.int64], new_lengths: NDArray[np.int64]) -> None:
        """Count the truncated sequences, from the sequences' lengths before and after truncation."""
        max_tokens = self._plan.max_doc_tokens or 1 << 62
        self._truncated += int(np.count_nonzero(lengths > max_tokens))
        # Compare with `max_tokens`, because only sequences that `pack_size` shortens further count as clamped.
        self._clamped += int(np.count_nonzero(new_lengths < np.minimum(lengths, max_tokens)))

    def _count_conversations(
        self,
        block: RowBlock,
        indexes: list[int],
        counts: NDArray[np.int64],
        keep: NDArray[np.bool_],
        reasons: NDArray[np.str_],
    ) -> None:
        """Count the conversations of a batch.

        A conversation without a kept sequence is dropped, for the same reason as its first sequence.
        """
        # Most batches lose no sequence, so avoid the slow loop over the rows.
        if keep.all() and (counts > 0).all():
            self._conversations += len(indexes)
            return
        ends = np.cumsum(counts)
        for index, start, end in zip(indexes, (ends - counts).tolist(), ends.tolist(), strict=True):
            drop_reasons = reasons[start:end][~keep[start:end]].tolist()
            if len(drop_reasons) < end - start:
                self._conversations += 1
                self._sequences_dropped.update(drop_reasons)
            else:
                reason = drop_reasons[0] if drop_reasons else EMPTY
                self._read_source_rows.drop(BadRecord(block.numbers[index], block.offsets[index], reason))

    def _write(
        self,
        tokens: NDArray[np.uint32],
        mask: NDArray[np.uint8],
        lengths: NDArray[np.int64],
        origins: NDArray[np.int64],
        keep: NDArray[np.bool_],
    ) -> None:
        """Append the kept sequences to the spool's files. Raises TokenizerError for an id outside the vocabulary."""
        if not keep.all():
            is_inside = np.repeat(keep, lengths)
            tokens, mask, lengths, origins = tokens[is_inside], mask[is_inside], lengths[keep], origins[keep]
        if not len(tokens):
            return
        self._low, self._high = min(self._low, int(tokens.min())), max(self._high, int(tokens.max()))
        # Refuse an id outside the vocabulary, because the model's embedding has no row for it.
        if self._high >= self._vocab_size:
            raise TokenizerError(
                f"{self._source.label}: token id {self._high} is outside the vocabulary (0 to {self._vocab_size - 1}). "
                "Set `tokenizer.engine: tokenizers`"
            )
        arrays = (view_ids_as_int32(tokens, self._source.label), mask, lengths.astype(np.uint32), origins)
        for name, array in zip((TOKENS, MASKS, LENGTHS, ORIGINS), arrays, strict=True):
            self._files[name].write(np.ascontiguousarray(array).data)
        self._sequences += len(lengths)
        self._tokens += len(tokens)

    def _recheck_sample(
        self,
        rendered_conversations: list[RenderedConversation],
        rows: NDArray[np.int64],
        counts: NDArray[np.int64],
        tokens: NDArray[np.uint32],
        offsets: NDArray[np.int64],
    ) -> None:
        """Encode a sample of conversations again with the reference engine. Raises CertificateError if ids differ."""
        if self._plan.sample_rate <= 0 or not rendered_conversations:
            return
        ends = np.cumsum(counts)
        for index in sample_rows(rows.astype(np.uint64), self._source.sha256, self._plan.sample_rate).tolist():
            # Skip conversations with special tokens in messages, because the encoder treats these tokens as text, but
            # the reference matches them.
            if rendered_conversations[index].mark is None:
                start, stop = offsets[ends[index] - counts[index]], offsets[ends[index]]
                location = f"{self._source.label}: row {rows[index]}"
                self._encoder.recheck(rendered_conversations[index], tokens[start:stop], location)
                self._sampled += 1

    def _build_ledger(self, source_bytes: int) -> Ledger:
        ledger = Ledger(
            rows_in=self._rows,
            documents=self._conversations,
            dropped=dict(sorted(self._read_source_rows.dropped.items())),
            blank_lines=self._blank,
            tokens=self._tokens,
            special_literals=self._literals,
            sampled_documents=self._sampled,
            source_bytes=source_bytes,
            text_characters=self._characters,
            **self._losses.counts,
            min_id=self._low if self._sequences else None,
            max_id=self._high if self._sequences else None,
        )
        ledger.require_balance(self._source.label)
        return ledger
