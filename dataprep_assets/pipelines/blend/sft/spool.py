"""One source file into its spool: the sequences of its conversations, encoded and masked, not packed yet.

A spool is a small artifact of its own, beside the shard that wants it, under a key of everything that decides its
bytes: template text, tokenizer, source digest, policies. So a killed run finds the files that were finished, and a
spool made with other settings is not taken for this one. It is gone once its shard is packed.

Files: `tokens.bin` int32, `masks.bin` uint8 (label-aligned), `lengths.bin` uint32, `origins.bin` int64 pairs (row of
the source file, sequence of the conversation), `quarantine.jsonl` (file, row, byte, reason of every dropped row).
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import BadRecordError, ConfigError, CorruptSourceError, TokenizerError
from dataprep_assets.execution.processes import report
from dataprep_assets.formats.packed_sft import token_ids
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.digest import canonical_json, digest_value, sha256_file
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.token_stream import sampled
from dataprep_assets.sources.records import BadRecord, Block
from dataprep_assets.sources.rows import RowBlock, RowRange, RowReader, read_rows
from dataprep_assets.tokenization.bundle import SpecialToken, TokenizerBundle
from dataprep_assets.tokenization.certificate import Certificate, CertifiedEncoder
from dataprep_assets.tokenization.chat import messages as chat
from dataprep_assets.tokenization.chat.mask import ChatEncoder, check_cutting, label_aligned
from dataprep_assets.tokenization.chat.messages import (
    Conversation,
    ConversationFields,
    Refusal,
    read_conversation,
)
from dataprep_assets.tokenization.chat.rendering import ConversationRenderer, Rendered, Turns, stop_token
from dataprep_assets.tokenization.chat.template import ChatTemplate, compile_template, template_variables

__all__ = [
    "CHOSEN",
    "LENGTHS",
    "MASKS",
    "ORIGINS",
    "QUARANTINE",
    "TOKENS",
    "ChatPlan",
    "ChatSource",
    "chat_plan",
    "conversation_renderer",
    "sample_texts",
    "spool_artifact",
    "spool_source",
]

VERSION = 1
"""Raise when a change here or in `tokenization/chat` can change a byte: it is part of every key downstream."""
TOKENS, MASKS, LENGTHS, ORIGINS, QUARANTINE = (
    "tokens.bin",
    "masks.bin",
    "lengths.bin",
    "origins.bin",
    "quarantine.jsonl",
)
EMPTY, TOO_LONG = "empty_after_masking", "longer_than_pack_size"
CHOSEN = (*chat.FILTERED, EMPTY, TOO_LONG)
"""Reasons for dropping a row that are choices of the declaration: no policy fails on them, no budget counts them."""
ALLOWED_LITERALS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Literals that people may write as tokens even where a tokenizer calls them special: they end no turn."""
BATCH = 512
"""Conversations encoded together: enough for the engine, little memory."""


@dataclass(frozen=True, kw_only=True)
class ChatPlan:
    """All that decides the sequences of a source file, and how they are proven. Picklable. Made by `chat_plan`.

    `pack_size` is the longest sequence in tokens; `too_long` what becomes of longer ones. `max_doc_tokens` cuts
    sequences before that.
    """

    tokenizer: Path
    tokenizer_digest: str
    certificate: dict[str, Any]
    template: ChatTemplate
    template_date: date | None
    stop: SpecialToken
    fields: ConversationFields
    turns: Turns
    allowed_literals: tuple[str, ...]
    bad_rows: Literal["fail", "drop"]
    max_doc_tokens: int | None
    pack_size: int
    too_long: Literal["truncate", "drop"]
    sample_rate: float

    def key_parts(self) -> dict[str, Any]:
        """What of the plan enters a key: not where the tokenizer lies, nor the template's name or place."""
        return {
            "spool": VERSION,
            "tokenizer": self.tokenizer_digest,
            "refused": sorted(self.certificate["refused"]),
            "template": self.template.digest,
            "template_date": self.template_date.isoformat() if self.template_date else None,
            "stop": self.stop.id,
            "fields": asdict(self.fields),
            "turns": self.turns,
            "allowed_literals": sorted(self.allowed_literals),
            "bad_rows": self.bad_rows,
            "max_doc_tokens": self.max_doc_tokens,
            "pack_size": self.pack_size,
            "too_long": self.too_long,
        }


def chat_plan(
    bundle: TokenizerBundle,
    certificate: Certificate,
    template: ChatTemplate,
    *,
    pack_size: int,
    fields: ConversationFields | None = None,
    template_date: date | None = None,
    stop: str = "auto",
    turns: Turns = "reasoning",
    allowed_literals: Sequence[str] = ALLOWED_LITERALS,
    bad_rows: Literal["fail", "drop"] = "fail",
    max_doc_tokens: int | None = None,
    too_long: Literal["truncate", "drop"] = "truncate",
    sample_rate: float = 0.0005,
) -> ChatPlan:
    """A plan that was tried: template and tokenizer are put together once, on one conversation.

    `certificate` is that of an engine for special tokens as `text`. Raises ConfigError for a template that does not
    compile or whose answers end with no special token, and for sizes below 2; TokenizerError for a tokenizer that
    cannot be cut at its special tokens.
    """
    for name, value in (("pack_size", pack_size), ("max_doc_tokens", max_doc_tokens)):
        if value is not None and value < 2:
            raise ConfigError(f"{name}: {value}: a sequence that trains anything has at least 2 tokens")
    renderer = compile_template(template, template_variables(bundle), template_date)
    plan = ChatPlan(
        tokenizer=bundle.directory,
        tokenizer_digest=bundle.digest,
        certificate=certificate.to_json(),
        template=template,
        template_date=template_date,
        stop=stop_token(renderer, bundle.special_tokens, stop),
        fields=fields or ConversationFields(),
        turns=turns,
        allowed_literals=tuple(allowed_literals),
        bad_rows=bad_rows,
        max_doc_tokens=max_doc_tokens,
        pack_size=pack_size,
        too_long=too_long,
        sample_rate=sample_rate,
    )
    _try(plan, bundle)
    return plan


def _try(plan: ChatPlan, bundle: TokenizerBundle) -> None:
    said = (("user", "Is it so?"), ("assistant", " Yes,\n it is. "), ("user", "\tWhy?"), ("assistant", "So."))
    conversation = Conversation([{"role": role, "content": text} for role, text in said])
    rendered = conversation_renderer(plan, bundle).render(conversation)
    if isinstance(rendered, Refusal):
        raise ConfigError(
            f"chat_template {plan.template.name}: {rendered} on a conversation of two questions and two answers. "
            "What it writes for the first messages must not depend on later ones; where it does on purpose, set "
            "`turns: always`, which makes one sequence of each user turn"
        )
    check_cutting(bundle, rendered)


def conversation_renderer(plan: ChatPlan, bundle: TokenizerBundle) -> ConversationRenderer:
    """The renderer of a plan."""
    renderer = compile_template(plan.template, template_variables(bundle), plan.template_date)
    return ConversationRenderer(
        renderer, bundle.special_tokens, stop=plan.stop.content, turns=plan.turns, allowed=plan.allowed_literals
    )


@dataclass(frozen=True, kw_only=True)
class ChatSource:
    """A source file of a shard, or a range of its rows. `size` is in bytes, for progress; `ordinal` in the shard."""

    label: str
    path: Path
    format: str
    compression: str | None
    sha256: str
    ordinal: int
    size: int
    rows: RowRange = field(default_factory=RowRange)

    def key_parts(self) -> list[Any]:
        """What of the source enters a key."""
        return [self.label, self.sha256, self.format, self.compression, self.rows.first, self.rows.stop]


def sample_texts(sources: Iterable[ChatSource], fields: ConversationFields, rows: int = 50) -> Iterator[str]:
    """What people wrote in the first rows of each source: texts to certify an engine with. Bad rows are left out."""
    for source in sources:
        reader = read_rows(
            source.path,
            format=source.format,
            compression=source.compression,
            label=source.label,
            rows=RowRange(source.rows.first, source.rows.first + rows),
            columns=fields.names,
        )
        found = (read_conversation(row, fields) for block in reader for row in block.rows)
        for conversation in islice(found, rows):
            if isinstance(conversation, Conversation):
                for message in conversation.messages:
                    yield from (message["content"], message.get("reasoning_content", ""))


@lru_cache(maxsize=1)
def _tools(plan_key: str, directory: Path, plan: "_Hidden") -> tuple[ConversationRenderer, ChatEncoder, int]:
    bundle = TokenizerBundle.load(directory)
    if bundle.digest != plan.value.tokenizer_digest:
        raise TokenizerError(f"{directory}: the tokenizer changed while the run was going on; start it again")
    certified = CertifiedEncoder(bundle, "text", Certificate.from_json(plan.value.certificate))
    return conversation_renderer(plan.value, bundle), ChatEncoder(bundle, certified), bundle.vocab_size


@dataclass(frozen=True)
class _Hidden:
    """A value that takes no part in the cache's comparison: its digest beside it does."""

    value: ChatPlan = field(compare=False)


def spool_artifact(shard: Artifact, ordinal: int) -> Artifact:
    """The name of the spool of one source file of a shard."""
    return Artifact(dataset=shard.dataset, name="sft_spool", partition=f"{shard.partition}.{ordinal:08d}")


def spool_key(plan: ChatPlan, source: ChatSource) -> str:
    """Digest of all that decides the bytes of a spool."""
    return digest_value(["sft_spool", VERSION, plan.key_parts(), source.key_parts()])


def spool_source(plan: ChatPlan, source: ChatSource, root: Path, shard: Artifact) -> Receipt:
    """A worker's task: have the spool of one source file below `root`.

    Raises CorruptSourceError when the file is damaged or not the file that was declared, BadRecordError under the
    policy `fail`.
    """

    def write(staged: Path) -> Written:
        return _Spooling(plan, source, staged).run()

    return ensure(spool_artifact(shard, source.ordinal), LocalArtifacts(root), spool_key(plan, source), write)[0]


class _Spooling:
    """Encodes one file and keeps its books."""

    def __init__(self, plan: ChatPlan, source: ChatSource, staged: Path) -> None:
        self._plan, self._source, self._staged = plan, source, staged
        parts = digest_value([plan.key_parts(), plan.certificate])
        self._renderer, self._encoder, self._vocab_size = _tools(parts, plan.tokenizer, _Hidden(plan))
        self._dropped: Counter[str] = Counter()
        self._sequences_dropped: Counter[str] = Counter()
        self._quarantine: list[bytes] = []
        self._files: dict[str, BinaryIO] = {}
        self._rows = self._blank = self._conversations = self._literals = self._characters = 0
        self._truncated = self._clamped = self._sequences = self._tokens = self._trained = self._sampled = 0
        self._low, self._high = 1 << 31, -1

    def run(self) -> Written:
        """Write the spool's files, and say what is in them."""
        source = self._source
        reader = read_rows(
            source.path,
            format=source.format,
            compression=source.compression,
            label=source.label,
            rows=source.rows,
            columns=self._plan.fields.names,
        )
        try:
            with ExitStack() as stack:
                for name in (TOKENS, MASKS, LENGTHS, ORIGINS):
                    self._files[name] = stack.enter_context(open(self._staged / name, "wb"))
                self._read(reader)
        except BadRecordError:
            self._require_digest(sha256_file(source.path))  # a damaged file is not to be taken for a bad row
            raise
        self._require_digest(reader.sha256)
        if self._quarantine:
            (self._staged / QUARANTINE).write_bytes(b"".join(self._quarantine))
        return Written(
            inputs={source.label: source.sha256, "tokenizer": self._plan.tokenizer_digest},
            facts={
                "sequences": self._sequences,
                "trained_tokens": self._trained,
                "truncated": self._truncated,
                "truncated_to_pack_size": self._clamped,
                "sequences_dropped": dict(sorted(self._sequences_dropped.items())),
            },
            ledger=self._ledger(reader.bytes_read),
        )

    def _read(self, reader: RowReader) -> None:
        seen, cpu = 0, time.process_time()
        for block in reader:
            tokens, conversations = self._tokens, self._conversations
            for start in range(0, len(block.rows), BATCH):
                self._encode(block, start)
            self._refuse_bad(block)
            now = time.process_time()
            report(
                tokens=self._tokens - tokens,
                documents=self._conversations - conversations,
                source_bytes=reader.bytes_read - seen,
                cpu_ms=int((now - cpu) * 1000),
            )
            seen, cpu = reader.bytes_read, now

    def _require_digest(self, actual: str) -> None:
        if actual != self._source.sha256:
            raise CorruptSourceError(
                f"{self._source.label}: sha256 of the bytes read is {actual}, declared is {self._source.sha256}. "
                "The file changed or is damaged: materialize its snapshot again"
            )

    def _refuse_bad(self, block: RowBlock) -> None:
        self._rows += len(block.rows) + len(block.bad)
        self._blank += block.blank_lines
        for bad in block.bad:
            self._drop(bad, None)

    def _drop(self, bad: BadRecord, message: int | None) -> None:
        if self._plan.bad_rows == "fail" and bad.reason not in CHOSEN:
            where = f"byte {bad.byte}" if bad.byte >= 0 else "no byte position"
            at = "" if message is None else f", message {message}"
            raise BadRecordError(
                f"{self._source.label}: row {bad.row}, {where}{at}: {bad.reason}. Mend the source, or set "
                "`bad_records: {policy: drop}` to count and skip such rows"
            )
        self._dropped[bad.reason] += 1
        line = {"file": self._source.label, "row": bad.row, "byte": bad.byte, "reason": bad.reason, "message": message}
        self._quarantine.append(canonical_json(line) + b"\n")

    def _encode(self, block: RowBlock, start: int) -> None:
        """Render, encode, mask and write one batch of a block's rows."""
        kept: list[Rendered] = []
        indexes: list[int] = []
        for index in range(start, min(start + BATCH, len(block.rows))):
            rendered = self._rendered(block.rows[index])
            if isinstance(rendered, Refusal):
                self._drop(BadRecord(block.numbers[index], block.offsets[index], rendered.reason), rendered.message)
            else:
                kept.append(rendered)
                indexes.append(index)
        encoded = self._encoder.encode(kept)
        counts = np.array([len(r.sequences) for r in kept], np.int64)
        rows = np.array([block.numbers[i] for i in indexes], np.int64)
        self._recheck_sample(kept, rows, counts, encoded.tokens, encoded.offsets)
        tokens, trained, offsets = encoded.tokens, encoded.trained, encoded.offsets
        self._literals += sum(r.mark is not None for r in kept)
        self._characters += sum(len(c.text) for r in kept for s in r.sequences for c in s)
        cut, keep_room = self._cut(np.diff(offsets))
        if not np.array_equal(cut, np.diff(offsets)):
            places = np.arange(len(tokens)) - np.repeat(offsets[:-1], np.diff(offsets))
            inside = places < np.repeat(cut, np.diff(offsets))
            tokens, trained = tokens[inside], trained[inside]
            offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(cut)])
        mask = label_aligned(trained, offsets)
        before = np.zeros(len(mask) + 1, np.int64)
        np.cumsum(mask, out=before[1:])
        per_sequence = before[offsets[1:]] - before[offsets[:-1]]
        keep = keep_room & (per_sequence > 0)
        reasons = np.where(keep_room, EMPTY, TOO_LONG)
        self._close_rows(block, indexes, counts, keep, reasons)
        turn = np.arange(len(keep)) - np.repeat(np.cumsum(counts) - counts, counts)
        self._write(tokens, mask, np.diff(offsets), np.stack([np.repeat(rows, counts), turn], axis=1), keep)
        self._trained += int(per_sequence[keep].sum())

    def _rendered(self, row: dict[str, Any]) -> Rendered | Refusal:
        conversation = read_conversation(row, self._plan.fields)
        return conversation if isinstance(conversation, Refusal) else self._renderer.render(conversation)

    def _cut(self, lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Lengths after truncation, and which sequences may stay."""
        if (most := self._plan.max_doc_tokens) is not None:
            self._truncated += int(np.count_nonzero(lengths > most))
            lengths = np.minimum(lengths, most)
        long = lengths > self._plan.pack_size
        if self._plan.too_long == "drop":
            return lengths, ~long
        self._clamped += int(np.count_nonzero(long))
        return np.minimum(lengths, self._plan.pack_size), np.ones(len(lengths), np.bool_)

    def _close_rows(
        self,
        block: RowBlock,
        indexes: list[int],
        counts: NDArray[np.int64],
        keep: NDArray[np.bool_],
        reasons: NDArray[np.str_],
    ) -> None:
        """Count conversations; one that lost all its sequences is dropped with the reason of the first."""
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
                self._sequences_dropped.update(lost)
                self._drop(BadRecord(block.numbers[index], block.offsets[index], reason), None)

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
        if self._high >= self._vocab_size:
            raise TokenizerError(
                f"{self._source.label}: token id {self._high} is not below {self._vocab_size}, the vocabulary's size. "
                "Set `tokenizer.engine: tokenizers`"
            )
        arrays = (token_ids(tokens, self._source.label), mask, lengths.astype(np.uint32), origins)
        for name, array in zip((TOKENS, MASKS, LENGTHS, ORIGINS), arrays, strict=True):
            self._files[name].write(np.ascontiguousarray(array).data)
        self._sequences += len(lengths)
        self._tokens += len(tokens)

    def _recheck_sample(
        self,
        kept: list[Rendered],
        rows: NDArray[np.int64],
        counts: NDArray[np.int64],
        tokens: NDArray[np.uint32],
        offsets: NDArray[np.int64],
    ) -> None:
        if self._plan.sample_rate <= 0 or not kept:
            return
        ends = np.cumsum(counts)
        as_block = Block([""] * len(kept), int(rows[0]), rows=rows.tolist())
        for index in sampled(as_block, self._source.sha256, self._plan.sample_rate).tolist():
            if kept[index].mark is None:
                first, stop = offsets[ends[index] - counts[index]], offsets[ends[index]]
                where = f"{self._source.label}: row {rows[index]}"
                self._encoder.recheck(kept[index], tokens[first:stop], where)
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
            min_id=self._low if self._sequences else None,
            max_id=self._high if self._sequences else None,
        )
        ledger.balance(self._source.label)
        return ledger
