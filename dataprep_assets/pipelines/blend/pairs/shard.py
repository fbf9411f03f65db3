"""A shard of preference pairs: its sources and settings, its key, its facts, and how it is built.

Its files are `pairs.parquet` (`formats/conversations/preference_rows.py`; absent if no pair is left), `origins.npy`
(`formats/row_origins.py`: source ordinal and row of each pair), `row_ids.npy` (`blend/removal/row_ids.py`) and
`quarantine.jsonl`. Rows have the order of the sources and of their rows, so the bytes do not depend on the number of
workers.

Entry points: `PairsShard`, `build_pairs_shard`, `load_encoder`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from dataprep_assets.curation.documents import sample_rows
from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.errors import BadRecordError, TokenizerError, count_of
from dataprep_assets.execution.run_task import report_work
from dataprep_assets.formats.conversations.preference_rows import PreferenceRow, write_preferences
from dataprep_assets.formats.row_origins import ORIGINS, write_origins
from dataprep_assets.integrity.receipt import LOSSES, Ledger, Receipt, Verification
from dataprep_assets.pipelines.blend.pairs.encoding import (
    PreferenceEncoder,
    RenderedPreference,
    find_fault,
    is_plain,
    render_preference,
)
from dataprep_assets.pipelines.blend.removal.row_ids import ReadRows, write_row_ids
from dataprep_assets.pipelines.blend.screening.reasons import TOO_LONG_PAIR
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatPlan, ChatSource, load_conversation_renderer
from dataprep_assets.pipelines.blend.sft.shard import ChatShard
from dataprep_assets.pipelines.blend.sft.source_rows import SourceRows
from dataprep_assets.pipelines.blend.sft.spool import load_tools
from dataprep_assets.sources.readers.row_files import BadRecord
from dataprep_assets.sources.readers.rows import RowBlock
from dataprep_assets.sources.readers.unreadable import format_budget_advice
from dataprep_assets.stream.token_stream import Fetch, ReadBytes, fetch_missing
from dataprep_assets.table import format_share
from dataprep_assets.tokenization.chat.mask import ChatEncoder
from dataprep_assets.tokenization.chat.messages import Preference, Refusal, read_preference
from dataprep_assets.tokenization.chat.rendering import ConversationRenderer
from dataprep_assets.tokenization.chat.row_forms import Form, remove_template_keys
from dataprep_assets.tokenization.losses import Losses, encode_or_locate, locate_row

VERSION = 2
PAIRS_FILE, QUARANTINE = "pairs.parquet", "quarantine.jsonl"
_BATCH = 256
"""Maximum number of preferences that are encoded together."""


@dataclass(frozen=True, kw_only=True)
class PairsShard(ChatShard):
    """A shard of preference pairs, ready to build."""

    read_row = staticmethod(read_preference)

    row_group_size: int
    compression: str

    @property
    def recipe(self) -> Recipe:
        settings = {
            "max_length": self.plan.pack_size,
            "row_group_size": self.row_group_size,
            "compression": self.compression,
        }
        # Omit `turns` and `too_long`, because a pair is never split or truncated. Omit `pack_size`, because these
        # settings contain it as `max_length`.
        return self.build_recipe(VERSION, settings, omitted=("turns", "too_long", "pack_size"))


class PairsSourceFacts(Facts):
    """Facts of one source file: the range of rows that were read, and their outcomes.

    `dropped` counts rows by reason. `form` is the form of the rows; None if there are no pairs.
    """

    file: str
    ordinal: int
    sha256: str
    rows: tuple[int, int | None]
    rows_in: int
    pairs: int
    dropped: dict[str, int]
    tokens: int
    form: Form | None


class PairsFacts(Facts):
    """Facts of a shard. `pairs` counts rows, `labeled` rows with only one answer, and `plain` rows with only text.

    Tokens are counted by part; `trained_tokens` have a mask of 1. `longest` is the length of the longest row in tokens.
    `chosen_longer` and `rejected_longer` count pairs by their longer answer. `retracted` are the ids (16 hex digits)
    on the retraction list whose rows were left out. `benchmarks` has the numbers of items of each declared benchmark.
    """

    empty: bool
    pairs: int
    labeled: int
    plain: int
    tokens: int
    prompt_tokens: int
    chosen_tokens: int
    rejected_tokens: int
    trained_tokens: int
    chosen_longer: int
    rejected_longer: int
    longest: int
    max_length: int
    row_group_size: int
    unread_keys: dict[str, int]
    template: str
    template_digest: str
    tokenizer_digest: str
    template_writes: dict[str, str]
    template_differences: tuple[str, ...]
    certificate: dict[str, Any]
    retracted: tuple[str, ...] = ()
    benchmarks: dict[str, dict[str, int]] = Field(default_factory=dict)
    sources: tuple[PairsSourceFacts, ...] = Field(default=())


def load_encoder(plan: ChatPlan) -> tuple[ConversationRenderer, ChatEncoder]:
    """Return the renderer and the encoder for the preferences of a plan."""
    _, encoder, _ = load_tools(plan)
    # Ignore the template's marks of trained text, because all text after the generation prompt is the answer.
    return load_conversation_renderer(plan, encoder.bundle, is_marked=False), encoder


def build_pairs_shard(
    shard: PairsShard, verification: Verification = "full", fetch: Fetch | None = None
) -> tuple[Receipt, bool]:
    """Build one shard unless it is up to date. Runs in a worker.

    Args:
        shard: The shard to build.
        verification: How thoroughly a finished shard is verified before it is reused.
        fetch: Fetches source files that are missing in this machine's mirror.

    Returns:
        The receipt, and whether the shard was reused.
    """

    def write(staged: Path) -> WrittenFiles:
        fetch_missing(shard.sources, fetch)
        return _PairsBuild(shard, staged).run()

    return ensure_built(shard.recipe, shard.store, write, verification)


class _PairsBuild:
    """Build of a shard, which encodes the rows of its source files and counts their outcomes."""

    def __init__(self, shard: PairsShard, staged: Path) -> None:
        self._shard, self._staged, self._plan = shard, staged, shard.plan
        self._renderer, encoder = load_encoder(shard.plan)
        self._encoder, self._bundle = PreferenceEncoder(encoder), encoder.bundle
        self._losses = Losses(encoder.bundle, "text")
        self._ids = ReadRows(shard.plan.retractions)
        self._quarantine: list[bytes] = []
        # Keep only the first bad row, because the error about the budget shows only that row.
        self._bad: list[tuple[str, BadRecord]] = []
        self._bad_count = 0
        self._origins: list[tuple[int, int]] = []
        self._unread: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._longest = self._literals = self._characters = self._sampled = self._bytes = self._blank = 0
        self._low, self._high = 1 << 31, -1
        self._sources: list[PairsSourceFacts] = []

    def run(self) -> WrittenFiles:
        """Write the shard's files; return the facts for its receipt. Raises BadRecordError if too many rows are bad."""
        rows = (row for source in self._shard.sources for row in self._read(source))
        first_row = next(rows, None)
        if first_row is not None:
            groups = _group_rows(first_row, rows, self._shard.row_group_size)
            write_preferences(self._staged / PAIRS_FILE, groups, compression=self._shard.compression)
            origins = np.array(self._origins, np.int64)
            write_origins(self._staged / ORIGINS, [origins[:, 0], origins[:, 1]])
        ledger = self._build_ledger()
        ledger.require_balance(str(self._shard.artifact))
        self._check_budget(ledger)
        if self._quarantine:
            (self._staged / QUARANTINE).write_bytes(b"".join(self._quarantine))
        plan = self._plan
        retracted = write_row_ids(self._staged, self._ids.table, plan.retractions)
        return WrittenFiles(
            inputs={source.label: source.sha256 for source in self._shard.sources}
            | {"tokenizer": plan.tokenizer_digest, "chat_template": plan.template.digest},
            facts=PairsFacts(
                empty=first_row is None,
                **{name: self._counts[name] for name in _COUNTS},
                tokens=ledger.tokens,
                longest=self._longest,
                max_length=plan.pack_size,
                row_group_size=self._shard.row_group_size,
                unread_keys=remove_template_keys(self._unread, plan.template.text),
                template=plan.template.name,
                template_digest=plan.template.digest,
                tokenizer_digest=plan.tokenizer_digest,
                template_writes=plan.capabilities.to_json(),
                template_differences=plan.differences,
                certificate=plan.certificate,
                **({} if plan.screen is None else plan.screen.record_facts()),
                **({"retracted": retracted} if retracted else {}),
                sources=tuple(self._sources),
            ),
            ledger=ledger,
            recipe=self._shard.finish(retracted),
        )

    def _read(self, source: ChatSource) -> Iterator[PreferenceRow]:
        """Yield the rows of a source file, and record the outcomes of all its rows."""
        source_rows = SourceRows(self._plan, source, read_preference, self._ids)
        pairs, tokens, row_count = self._counts["pairs"], self._counts["tokens"], 0
        with source_rows.open() as reader:
            read_bytes = ReadBytes(source, reader)
            for block in reader:
                row_count += len(block.rows) + len(block.bad)
                self._blank += block.blank_lines
                for bad_row in block.bad:
                    self._drop(source_rows, bad_row)
                tokens_before = self._counts["tokens"]
                for start in range(0, len(block.rows), _BATCH):
                    yield from self._encode(source_rows, block, start)
                report_work(
                    tokens=self._counts["tokens"] - tokens_before,
                    documents=len(block.rows),
                    source_bytes=read_bytes.take(),
                )
        self._quarantine += source_rows.quarantine
        self._unread.update(source_rows.unread)
        self._bytes += reader.bytes_read
        self._sources.append(
            PairsSourceFacts(
                file=source.label,
                ordinal=source.ordinal,
                sha256=source.sha256,
                rows=(source.rows.first, source.rows.stop),
                rows_in=row_count,
                pairs=self._counts["pairs"] - pairs,
                dropped=dict(sorted(source_rows.dropped.items())),
                tokens=self._counts["tokens"] - tokens,
                form=source_rows.form,
            )
        )

    def _encode(self, source_rows: SourceRows[Preference], block: RowBlock, start: int) -> Iterator[PreferenceRow]:
        """Render, encode and count a batch of a block's rows, beginning at `start`; yield the kept rows."""
        source = source_rows.source
        rendered: list[RenderedPreference] = []
        indexes: list[int] = []
        batch = slice(start, start + _BATCH)
        for index, preference in enumerate(source_rows.read(block.rows[batch], block.numbers[batch]), start):
            outcome = preference if isinstance(preference, Refusal) else render_preference(self._renderer, preference)
            if isinstance(outcome, Refusal):
                bad_row = BadRecord(block.numbers[index], block.offsets[index], outcome.reason)
                self._drop(source_rows, bad_row, outcome)
            else:
                rendered.append(outcome)
                indexes.append(index)
        rows = encode_or_locate(
            self._encoder.encode,
            rendered,
            self._bundle.name,
            lambda position: locate_row(source.label, block.numbers[indexes[position]]),
        )
        self._recheck_sample(source, rendered, rows, [block.numbers[index] for index in indexes])
        for rendered_row, row, index in zip(rendered, rows, indexes, strict=True):
            reason = find_fault(row) or (TOO_LONG_PAIR if row.length > self._plan.pack_size else None)
            if reason is not None:
                self._drop(source_rows, BadRecord(block.numbers[index], block.offsets[index], reason))
                continue
            self._count(source, rendered_row, row)
            self._origins.append((source.ordinal, block.numbers[index]))
            yield row

    def _count(self, source: ChatSource, rendered: RenderedPreference, row: PreferenceRow) -> None:
        """Add a row to the shard's counts. Raises TokenizerError for an id outside the vocabulary."""
        sizes = {name: 0 if answer is None else len(answer.ids) for name, answer in _list_sides(row)}
        is_pair = row.chosen_answer is not None and row.rejected_answer is not None
        self._counts.update(
            pairs=1,
            labeled=not is_pair,
            plain=is_plain(row),
            tokens=row.tokens,
            prompt_tokens=len(row.prompt_ids),
            chosen_tokens=sizes["chosen"],
            rejected_tokens=sizes["rejected"],
            trained_tokens=sum(int(answer.mask.sum()) for answer in row.answers),
            chosen_longer=is_pair and sizes["chosen"] > sizes["rejected"],
            rejected_longer=is_pair and sizes["chosen"] < sizes["rejected"],
        )
        self._longest = max(self._longest, row.length)
        texts = rendered.texts
        self._characters += sum(map(len, texts))
        self._literals += not rendered.is_bare
        ids = np.concatenate([row.prompt_ids, *(answer.ids for answer in row.answers)])
        if rendered.is_bare:
            self._losses.count(texts, ids)
        self._low, self._high = min(self._low, int(ids.min())), max(self._high, int(ids.max()))
        if self._high >= self._bundle.vocab_size:
            raise TokenizerError(
                f"{source.label}: token id {self._high} is outside the vocabulary (0 to "
                f"{self._bundle.vocab_size - 1}). Set `tokenizer.engine: tokenizers`"
            )

    def _recheck_sample(
        self,
        source: ChatSource,
        rendered: Sequence[RenderedPreference],
        rows: Sequence[PreferenceRow],
        numbers: Sequence[int],
    ) -> None:
        """Encode a sample of the rows again with the reference engine. Raises CertificateError if ids differ."""
        if self._plan.sample_rate <= 0 or not rendered:
            return
        ids = np.array(numbers, np.uint64)
        for index in sample_rows(ids, source.sha256, self._plan.sample_rate).tolist():
            # Skip rows whose messages contain the text of a special token, because the build encodes it as plain text,
            # but the reference would match the token.
            if rendered[index].is_bare:
                self._encoder.recheck(rendered[index], rows[index], f"{source.label}: row {numbers[index]}")
                self._sampled += 1

    def _drop(self, source_rows: SourceRows[Preference], record: BadRecord, refusal: Refusal | None = None) -> None:
        source_rows.drop(record, refusal)
        if self._plan.is_bad(record.reason):
            self._bad_count += 1
            self._bad = self._bad or [(source_rows.source.label, record)]

    def _check_budget(self, ledger: Ledger) -> None:
        if self._bad_count > self._shard.budget * ledger.rows_in:
            (label, record), *_ = self._bad
            raise BadRecordError(
                f"{self._shard.artifact}: {self._bad_count} of {count_of(ledger.rows_in, 'row')} would be dropped as "
                f"bad, more than the budget of {format_share(self._shard.budget)}. First error: {label}, row "
                f"{record.row}: {record.reason}. {format_budget_advice(self._bad_count, ledger.rows_in)}"
            )

    def _build_ledger(self) -> Ledger:
        drops = sum((Counter(source.dropped) for source in self._sources), Counter[str]())
        return Ledger(
            rows_in=sum(source.rows_in for source in self._sources),
            documents=self._counts["pairs"],
            dropped=dict(sorted(drops.items())),
            blank_lines=self._blank,
            tokens=self._counts["tokens"],
            special_literals=self._literals,
            sampled_documents=self._sampled,
            source_bytes=self._bytes,
            text_characters=self._characters,
            **{name: self._losses.counts[name] for name in LOSSES},
            min_id=self._low if self._origins else None,
            max_id=self._high if self._origins else None,
        )


_COUNTS = (
    "pairs",
    "labeled",
    "plain",
    "prompt_tokens",
    "chosen_tokens",
    "rejected_tokens",
    "trained_tokens",
    "chosen_longer",
    "rejected_longer",
)


def _list_sides(row: PreferenceRow) -> list[tuple[str, Any]]:
    return [("chosen", row.chosen_answer), ("rejected", row.rejected_answer)]


def _group_rows(first_row: PreferenceRow, rows: Iterator[PreferenceRow], size: int) -> Iterator[list[PreferenceRow]]:
    """Yield rows in groups of `size`; the last group may be smaller."""
    group = [first_row]
    for row in rows:
        if len(group) == size:
            yield group
            group = []
        group.append(row)
    yield group
