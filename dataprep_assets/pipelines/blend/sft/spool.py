"""Builds the spool of one source file: the sequences of its conversations, encoded and masked, not packed yet.

A spool is a small artifact of its own, beside the shard that needs it, under a key of everything that decides its
bytes: template text, tokenizer, source digest, policies. So a rerun finds the files that a killed run finished, and a
spool made with other settings is not used. It is deleted once its shard is packed.

Files: `tokens.bin` int32, `masks.bin` uint8 (label-aligned), `lengths.bin` uint32, `origins.bin` int64 pairs (row of
the source file, sequence of the conversation), `quarantine.jsonl` (file, row, byte, reason of every dropped row).
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray

from dataprep_assets.curation.documents import sample_rows
from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.errors import BadRecordError, FormatError, TokenizerError
from dataprep_assets.execution.run_task import report
from dataprep_assets.formats.packed_rows import token_ids
from dataprep_assets.integrity.artifacts import Artifact, LocalArtifacts
from dataprep_assets.integrity.receipt import Ledger, Receipt
from dataprep_assets.pipelines.blend.sft.chat_plan import VERSION, ChatPlan, ChatSource, conversation_renderer
from dataprep_assets.sources.readers.row_files import BadRecord
from dataprep_assets.sources.readers.rows import RowBlock, RowReader
from dataprep_assets.sources.readers.unreadable import place_of
from dataprep_assets.stores.files import canonical_json, digest_value, require_digest, sha256_file
from dataprep_assets.stream.token_stream import SourcePart, unreadable_part
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import Certificate, CertifiedEncoder
from dataprep_assets.tokenization.chat.mask import ChatEncoder, label_aligned
from dataprep_assets.tokenization.chat.messages import ADVICE, FILTERED, NO_MESSAGES, Refusal, read_conversation
from dataprep_assets.tokenization.chat.rendering import ConversationRenderer, RenderedConversation, used_part
from dataprep_assets.tokenization.losses import Losses, encode_or_name, row_of

TOKENS, MASKS, LENGTHS, ORIGINS, QUARANTINE = (
    "tokens.bin",
    "masks.bin",
    "lengths.bin",
    "origins.bin",
    "quarantine.jsonl",
)
EMPTY, TOO_LONG = "empty_after_masking", "longer_than_pack_size"
CHOSEN = (*FILTERED, EMPTY, TOO_LONG)
"""Reasons for dropping a row that are choices of the declaration: no policy fails on them, no budget counts them."""
BATCH = 512
"""Conversations encoded together: enough for the engine, little memory."""


class SpoolFacts(Facts):
    """`truncated`: sequences that stayed, cut to `max_doc_tokens`; `sequences_dropped`: those that did not stay though
    their conversation did, by reason; `conversations_cut`: conversations without some of their messages, by reason."""

    sequences: int
    trained_tokens: int
    truncated: int
    truncated_to_pack_size: int
    sequences_dropped: dict[str, int]
    conversations_cut: dict[str, int]


def load_tools(plan: ChatPlan) -> tuple[ConversationRenderer, ChatEncoder, int]:
    """Return what renders and encodes a plan's conversations, and the size of the vocabulary; loaded once a process."""
    return _tools(digest_value([plan.key_parts(), plan.certificate]), plan.tokenizer, _Hidden(plan))


@lru_cache(maxsize=1)
def _tools(plan_key: str, directory: Path, plan: "_Hidden") -> tuple[ConversationRenderer, ChatEncoder, int]:
    # the plan has a folder and a digest: who loads it later, maybe elsewhere, has to find the same tokenizer there
    bundle = TokenizerBundle.load(directory)
    if bundle.digest != plan.value.tokenizer_digest:
        raise TokenizerError(f"{directory}: the tokenizer changed during the run. Start it again")
    certified = CertifiedEncoder(bundle, "text", Certificate.from_json(plan.value.certificate))
    encoder = ChatEncoder(bundle, certified, plan.value.structure)
    return conversation_renderer(plan.value, bundle), encoder, bundle.vocab_size


def cut_lengths(plan: ChatPlan, lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Lengths of sequences after truncation, and which sequences may stay: both of shape `(sequences,)`."""
    if plan.max_doc_tokens is not None:
        lengths = np.minimum(lengths, plan.max_doc_tokens)
    if plan.too_long == "drop":
        return lengths, lengths <= plan.pack_size
    return np.minimum(lengths, plan.pack_size), np.ones(len(lengths), np.bool_)


@dataclass(frozen=True)
class _Hidden:
    """Wraps a plan so that the cache does not compare it, but only the digest passed with it."""

    value: ChatPlan = field(compare=False)


def spool_artifact(shard: Artifact, ordinal: int) -> Artifact:
    """The name of the spool of one source file of a shard."""
    return Artifact(dataset=shard.dataset, name="sft_spool", partition=f"{shard.partition}.{ordinal:08d}")


def spool_key(plan: ChatPlan, source: ChatSource) -> str:
    """Digest of everything that decides the bytes of a spool."""
    return digest_value(["sft_spool", VERSION, plan.key_parts(), source.key_parts()])


def spool_source(plan: ChatPlan, source: ChatSource, root: Path, shard: Artifact) -> Receipt:
    """A worker's task: build the spool of one source file unless it is current.

    `plan` says how `source` is encoded; `root` is the folder of the spools, `shard` the artifact that they are for.
    Raises CorruptSourceError when the file is damaged or not the file that was declared, BadRecordError for a bad row
    under the policy `fail`.
    """

    def write(staged: Path) -> WrittenFiles:
        return _Spooling(plan, source, staged).run()

    recipe = Recipe(
        artifact=spool_artifact(shard, source.ordinal),
        key=spool_key(plan, source),
        version=VERSION,
        sources={
            source.label: source.sha256,
            "tokenizer": plan.tokenizer_digest,
            "chat_template": plan.template.digest,
        },
    )
    return ensure(recipe, LocalArtifacts(root), write)[0]


class _Spooling:
    """Encodes one file and counts the outcomes of its rows."""

    def __init__(self, plan: ChatPlan, source: ChatSource, staged: Path) -> None:
        self._plan, self._source, self._staged = plan, source, staged
        self._renderer, self._encoder, self._vocab_size = load_tools(plan)
        self._losses = Losses(self._encoder.bundle, "text")
        # reason → rows left out, and reason → sequences left out of rows that stayed
        self._dropped: Counter[str] = Counter()
        self._sequences_dropped: Counter[str] = Counter()
        self._cut: Counter[str] = Counter()
        self._quarantine: list[bytes] = []
        # where the file's first row without messages is, and why; whether any row has some
        self._first_bad, self._has_read = "", False
        self._files: dict[str, BinaryIO] = {}
        self._rows = self._blank = self._conversations = self._literals = self._characters = 0
        self._truncated = self._clamped = self._sequences = self._tokens = self._trained = self._sampled = 0
        # above and below every id, until the first tokens are written
        self._low, self._high = 1 << 31, -1

    def run(self) -> WrittenFiles:
        """Write the spool's files, and return what the receipt says about them."""
        source = self._source
        reader = source.read_rows(self._plan.fields.names)
        try:
            with ExitStack() as stack:
                for name in (TOKENS, MASKS, LENGTHS, ORIGINS):
                    self._files[name] = stack.enter_context(open(self._staged / name, "wb"))
                self._read_rows(reader)
        except BadRecordError:
            # a damaged file must not pass for a bad row
            require_digest(
                source.label, source.digests.digest_of(sha256_file(source.path)), source.sha256, "its snapshot"
            )
            self._require_readable()
            raise
        # digested while it was read: no second reading, and no moment in which another file could take its place
        require_digest(source.label, source.digests.digest_of(reader.sha256), source.sha256, "its snapshot")
        self._require_readable()
        if self._quarantine:
            (self._staged / QUARANTINE).write_bytes(b"".join(self._quarantine))
        return WrittenFiles(
            inputs={source.label: source.sha256, "tokenizer": self._plan.tokenizer_digest},
            facts=SpoolFacts(
                sequences=self._sequences,
                trained_tokens=self._trained,
                truncated=self._truncated,
                truncated_to_pack_size=self._clamped,
                sequences_dropped=dict(sorted(self._sequences_dropped.items())),
                conversations_cut=dict(sorted(self._cut.items())),
            ),
            ledger=self._ledger(reader.bytes_read),
        )

    def _read_rows(self, reader: RowReader) -> None:
        bytes_before, cpu = 0, time.process_time()
        for block in reader:
            tokens, conversations = self._tokens, self._conversations
            for start in range(0, len(block.rows), BATCH):
                self._encode(block, start)
            self._refuse_bad(block)
            now = time.process_time()
            report(
                tokens=self._tokens - tokens,
                documents=self._conversations - conversations,
                source_bytes=reader.bytes_read - bytes_before,
                cpu_ms=int((now - cpu) * 1000),
            )
            bytes_before, cpu = reader.bytes_read, now

    def _refuse_bad(self, block: RowBlock) -> None:
        self._rows += len(block.rows) + len(block.bad)
        self._blank += block.blank_lines
        for bad in block.bad:
            self._first_bad = self._first_bad or place_of(bad)
            self._drop(bad)

    def _require_readable(self) -> None:
        """Raise BadRecordError if the file has rows, but none with messages; also if bad rows are dropped."""
        if self._has_read or not self._first_bad:
            return
        if (error := unreadable_part(self._source, self._first_bad, self._has_messages)) is not None:
            raise error from None

    def _has_messages(self, part: SourcePart) -> bool:
        rows = (row for block in part.read_rows(self._plan.fields.names) for row in block.rows)
        return any(read_conversation(row, self._plan.fields, self._plan.choices) != NO_MESSAGES for row in rows)

    def _drop(self, bad: BadRecord, refusal: Refusal | None = None) -> None:
        message = refusal.message if refusal else None
        if self._plan.bad_rows == "fail" and bad.reason not in CHOSEN:
            where = f"byte {bad.byte}" if bad.byte >= 0 else "no byte position"
            message_note = "" if message is None else f", message {message}"
            words = f" {refusal.words!r}" if refusal and refusal.words else ""
            advice = f" ({hint})" if (hint := ADVICE.get(bad.reason.partition(":")[0])) else ""
            raise BadRecordError(
                f"{self._source.label}: row {bad.row}, {where}{message_note}: {bad}{words}{advice}. Correct the "
                "source, or set `bad_records: {policy: drop}` to count and skip such rows",
                file=self._source.label,
                **bad.position,
            )
        self._dropped[bad.reason] += 1
        line = {"file": self._source.label, "row": bad.row, "byte": bad.byte, "reason": bad.reason, "message": message}
        if refusal and refusal.words:
            line["words"] = refusal.words
        self._quarantine.append(canonical_json(line) + b"\n")

    def _encode(self, block: RowBlock, start: int) -> None:
        """Render, encode, mask and write one batch of a block's rows."""
        conversations: list[RenderedConversation] = []
        indexes: list[int] = []
        for index in range(start, min(start + BATCH, len(block.rows))):
            rendered = self._rendered(block.rows[index])
            self._has_read |= rendered != NO_MESSAGES
            if isinstance(rendered, Refusal):
                bad = BadRecord(block.numbers[index], block.offsets[index], rendered.reason)
                self._first_bad = self._first_bad or place_of(bad)
                self._drop(bad, rendered)
            else:
                self._cut.update(rendered.cuts)
                conversations.append(rendered)
                indexes.append(index)
        # All sequences of the batch lie end to end; `counts` says how many each row has, `offsets` where each begins.
        encoded = encode_or_name(
            self._encoder.encode,
            conversations,
            self._encoder.bundle.name,
            lambda at: row_of(self._source.label, block.numbers[indexes[at]]),
        )
        # a text with placeholders is not what was encoded
        bare = (chunks for r in conversations if r.mark is None for chunks in r.sequences)
        self._losses.count([chunk.text for chunks in bare for chunk in chunks], encoded.tokens)
        counts = np.array([len(r.sequences) for r in conversations], np.int64)
        rows = np.array([block.numbers[i] for i in indexes], np.int64)
        # before anything is cut: the reference encodes whole sequences
        self._recheck_sample(conversations, rows, counts, encoded.tokens, encoded.offsets)
        tokens, trained_mask, offsets = encoded.tokens, encoded.trained, encoded.offsets
        self._literals += sum(r.mark is not None for r in conversations)
        self._characters += sum(len(chunk.text) for r in conversations for chunks in r.sequences for chunk in chunks)
        lengths = np.diff(offsets)
        new_lengths, keep_room = cut_lengths(self._plan, lengths)
        if not np.array_equal(new_lengths, lengths):
            # the position of each token within its sequence: those beyond the cut go, whatever sequence they are of
            positions = np.arange(len(tokens)) - np.repeat(offsets[:-1], lengths)
            inside = positions < np.repeat(new_lengths, lengths)
            tokens, trained_mask = tokens[inside], trained_mask[inside]
            offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(new_lengths)])
        # only now: what was cut off is no label, and the last token of each sequence has none
        mask = label_aligned(trained_mask, offsets)
        # counted one by one: a cumulative sum over all labels would take 8 bytes for each byte of the mask
        per_sequence = np.array([np.count_nonzero(mask[a:b]) for a, b in pairwise(offsets.tolist())], np.int64)
        kept_untrained = self._plan.choices.untrained == "kept"
        keep = keep_room & ((np.diff(offsets) > 0) if kept_untrained else (per_sequence > 0))
        reasons = np.where(keep_room, EMPTY, TOO_LONG)
        self._close_rows(block, indexes, counts, keep, reasons)
        self._count_cuts(lengths[keep], new_lengths[keep])
        # the number of each sequence within its conversation, counted before those that are left out go
        sequence_numbers = np.arange(len(keep)) - np.repeat(np.cumsum(counts) - counts, counts)
        self._write(tokens, mask, np.diff(offsets), np.stack([np.repeat(rows, counts), sequence_numbers], axis=1), keep)
        self._trained += int(per_sequence[keep].sum())

    def _rendered(self, row: dict[str, Any]) -> RenderedConversation | Refusal:
        conversation = read_conversation(row, self._plan.fields, self._plan.choices)
        return conversation if isinstance(conversation, Refusal) else used_part(self._renderer.render(conversation))

    def _count_cuts(self, whole: NDArray[np.int64], cut: NDArray[np.int64]) -> None:
        """Count the sequences that are shorter than they were: their lengths before and after."""
        max_tokens = self._plan.max_doc_tokens or 1 << 62
        self._truncated += int(np.count_nonzero(whole > max_tokens))
        # what `max_doc_tokens` has shortened to less than a row is not counted a second time
        self._clamped += int(np.count_nonzero(cut < np.minimum(whole, max_tokens)))

    def _close_rows(
        self,
        block: RowBlock,
        indexes: list[int],
        counts: NDArray[np.int64],
        keep: NDArray[np.bool_],
        reasons: NDArray[np.str_],
    ) -> None:
        """Count conversations; one that lost all its sequences is dropped with the reason of the first."""
        # the usual batch, in which nothing was lost: no step for each row
        if keep.all() and (counts > 0).all():
            self._conversations += len(indexes)
            return
        ends = np.cumsum(counts)
        for index, start, end in zip(indexes, (ends - counts).tolist(), ends.tolist(), strict=True):
            lost = reasons[start:end][~keep[start:end]].tolist()
            if len(lost) < end - start:
                self._conversations += 1
                self._sequences_dropped.update(lost)
            else:
                reason = lost[0] if lost else EMPTY
                self._drop(BadRecord(block.numbers[index], block.offsets[index], reason))

    def _write(
        self,
        tokens: NDArray[np.uint32],
        mask: NDArray[np.uint8],
        lengths: NDArray[np.int64],
        origins: NDArray[np.int64],
        keep: NDArray[np.bool_],
    ) -> None:
        if not keep.all():
            inside = np.repeat(keep, lengths)
            tokens, mask, lengths, origins = tokens[inside], mask[inside], lengths[keep], origins[keep]
        if not len(tokens):
            return
        self._low, self._high = min(self._low, int(tokens.min())), max(self._high, int(tokens.max()))
        # an embedding of the vocabulary's size has no row for such an id; the engine disagrees with its tokenizer
        if self._high >= self._vocab_size:
            raise TokenizerError(
                f"{self._source.label}: token id {self._high} is not below the vocabulary size {self._vocab_size}. "
                "Set `tokenizer.engine: tokenizers`"
            )
        arrays = (token_ids(tokens, self._source.label), mask, lengths.astype(np.uint32), origins)
        for name, array in zip((TOKENS, MASKS, LENGTHS, ORIGINS), arrays, strict=True):
            self._files[name].write(np.ascontiguousarray(array).data)
        self._sequences += len(lengths)
        self._tokens += len(tokens)

    def _recheck_sample(
        self,
        kept: list[RenderedConversation],
        rows: NDArray[np.int64],
        counts: NDArray[np.int64],
        tokens: NDArray[np.uint32],
        offsets: NDArray[np.int64],
    ) -> None:
        if self._plan.sample_rate <= 0 or not kept:
            return
        ends = np.cumsum(counts)
        for index in sample_rows(rows.astype(np.uint64), self._source.sha256, self._plan.sample_rate).tolist():
            # a special token that somebody wrote is text here, and the reference would match it: ids differ on purpose
            if kept[index].mark is None:
                start, stop = offsets[ends[index] - counts[index]], offsets[ends[index]]
                where = f"{self._source.label}: row {rows[index]}"
                self._encoder.recheck(kept[index], tokens[start:stop], where)
                self._sampled += 1

    def _ledger(self, source_bytes: int) -> Ledger:
        ledger = Ledger(
            rows_in=self._rows,
            documents=self._conversations,
            dropped=dict(sorted(self._dropped.items())),
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
        ledger.balance(self._source.label)
        return ledger


def read_quarantine(path: Path) -> Iterator[Mapping[str, Any]]:
    """Lines of a quarantine file, none without the file.

    Raises FormatError for a line that is not a quarantined row.
    """
    if not path.exists():
        return
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = orjson.loads(line)
                yield {name: row[name] for name in ("file", "row", "byte", "reason", "message")} | {
                    "words": row.get("words", "")
                }
            except (orjson.JSONDecodeError, KeyError, TypeError) as error:
                raise FormatError(f"{path}: line {number} is not a quarantined row: {error}. Rebuild it") from error
