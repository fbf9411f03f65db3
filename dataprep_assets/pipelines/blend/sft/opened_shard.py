"""A shard of packed chat data that is opened for its checks, which read its rows and the compared source rows once.

Row groups are read one at a time, so memory use does not grow with the shard. A row is a row of the Parquet file, and a
sequence is a part of a row. Both are numbered from 0.

Entry points: `OpenedShard`; and the content that it finds, `SftRowScan`, `StopRuns` and `SampledSequence`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.checks.check import BY_REFERENCE, REBUILD, SAMPLED, describe_artifact
from dataprep_assets.errors import FormatError
from dataprep_assets.formats.packed_rows import PackedRowBlock, find_padding_defects, find_row_defects, open_packed_file
from dataprep_assets.formats.row_origins import ORIGINS, Origins, read_origins
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.duplicates.duplicate_rows import DuplicateRows
from dataprep_assets.pipelines.blend.screening.contamination import KeptRowSearch, describe_origin
from dataprep_assets.pipelines.blend.screening.row_rules import RowRules
from dataprep_assets.pipelines.blend.screening.row_screen import RowScreen
from dataprep_assets.pipelines.blend.screening.row_texts import remove_thoughts
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatPlan, ChatSource
from dataprep_assets.pipelines.blend.sft.shard import PACKED, PackedSftFacts, SftShard
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.chat.messages import Conversation, Refusal, read_conversation


@dataclass(frozen=True, eq=False)
class SampledSequence:
    """A sequence of a packed file: its number, its row, its ids, and its mask, which is aligned with the labels."""

    number: int
    row: int
    tokens: NDArray[np.int32]
    mask: NDArray[np.uint8]


@dataclass(kw_only=True)
class StopRuns:
    """Counts of the runs of trained labels, by how they end.

    Attributes:
        runs: Number of runs.
        unfinished: Number of runs that end inside an answer because their sequence ends there.
        wrong: An entry for each row group with runs that end elsewhere without a stop token: the first such run's row,
            the position of its last label in the row, this label's id, and the number of such runs.
    """

    runs: int = 0
    unfinished: int = 0
    wrong: list[tuple[int, int, int, int]] = field(default_factory=list)


@dataclass(kw_only=True)
class SftRowScan:
    """Content of a packed file.

    Attributes:
        low: The smallest id; None if there are no tokens.
        high: The largest id; None if there are no tokens.
        beyond: Row and id of the first id outside the vocabulary, for each row group that has such an id.
        defects: Sentences about rows that do not fit the schema.
        unsound: A sentence about the first row group whose sequences do not have valid bounds. From this row group on,
            `stops`, `doubled` and `sampled` are not collected, because they need the bounds.
        doubled: Number of special tokens that are followed by the same token, by id.
        doubled_at: Row of the first of these tokens, and its position in the row.
    """

    group_sizes: tuple[int, ...]
    bins: int = 0
    sequences: int = 0
    tokens: int = 0
    trained: int = 0
    longest: int = 0
    low: int | None = None
    high: int | None = None
    beyond: list[tuple[int, int]] = field(default_factory=list)
    defects: list[str] = field(default_factory=list)
    unsound: str | None = None
    stops: StopRuns = field(default_factory=StopRuns)
    doubled: Counter[int] = field(default_factory=Counter)
    doubled_at: tuple[int, int] | None = None
    sampled: dict[int, SampledSequence] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class OpenedShard:
    """A shard that is opened for checks: its folder, receipt, source files, plan and tokenizer.

    `shard` is needed only to rebuild the shard if every document is checked. `compared` is the number of sequences to
    compare with their source rows. At most `shown` of these are listed by kind of turn.
    """

    directory: Path
    receipt: Receipt
    sources: Sequence[ChatSource]
    plan: ChatPlan
    bundle: TokenizerBundle
    shard: SftShard | None = None
    shown: int = 64
    compared: int = SAMPLED

    @property
    def name(self) -> str:
        """Name of the shard in messages."""
        return describe_artifact(self.receipt)

    @cached_property
    def facts(self) -> PackedSftFacts:
        """Facts in the shard's receipt. Raises IntegrityError if a fact is missing."""
        return PackedSftFacts.from_receipt(self.receipt)

    @property
    def row_rules(self) -> RowRules | None:
        """The rules that drop rows; None if the blend has none."""
        return self.plan.rules

    @property
    def duplicates(self) -> DuplicateRows | None:
        """The rows that are dropped as duplicates; None if the blend has none."""
        return self.plan.duplicates

    @property
    def screen(self) -> RowScreen | None:
        """The search for benchmark items; None if the blend has none."""
        return self.plan.screen

    def search_kept_rows(self, search: KeptRowSearch) -> None:
        """Search the decoded sequences, so that an item is also found if its part of the row was not searched.

        A sequence does not show which of its texts are questions. Unless all texts are searched, its source row
        therefore decides whether a selected text contains the item.
        """
        _ = self.sound_scan  # raises the error for sequences without valid bounds
        for padded_rows in () if self.facts.empty else open_packed_file(self.directory / PACKED):
            rows = padded_rows.without_padding()
            for start, stop in zip(*map(np.ndarray.tolist, rows.bounds()), strict=True):
                text = self.bundle.decode(rows.tokens[start:stop])
                search.add([*dict.fromkeys([text, remove_thoughts(text)])])
        search.flush()
        first_sequences: dict[tuple[int, int], int] = {}
        # Skip sequences without an origin, which `round_trip` reports.
        for number in [number for number in search.leaks if number < len(self.origins)]:
            ordinal, row = self.origins[number, :2].tolist()
            first_sequences.setdefault((ordinal, row), number)
        if search.screen.declaration.text != "all":
            first_sequences = self._select_leaks(search, first_sequences)
        search.leaks = {number: search.leaks[number] for number in first_sequences.values()}
        labels = {source.ordinal: source.label for source in self.sources}
        search.locate_leaks(lambda number: describe_origin(labels, self.origins, number))

    def _select_leaks(
        self, search: KeptRowSearch, numbers: Mapping[tuple[int, int], int]
    ) -> dict[tuple[int, int], int]:
        """Return the source rows whose selected texts contain an item, with the numbers of their sequences."""
        selected = {}
        for source in self.sources:
            rows = {row for ordinal, row in numbers if ordinal == source.ordinal}
            for row, conversation in self.read_source(source, rows):
                if isinstance(conversation, Refusal):
                    continue  # `round_trip` reports a row that is not a conversation
                (item,) = search.screen.find_best_items([search.screen.select_texts(conversation)])
                if search.screen.is_leak(item):
                    number = numbers[source.ordinal, row]
                    selected[source.ordinal, row], search.leaks[number] = number, item
        return selected

    @property
    def untrained_allowed(self) -> bool:
        """Whether a sequence may have no trained tokens."""
        return self.plan.choices.untrained == "kept"

    @cached_property
    def scan(self) -> SftRowScan:
        """The file's content, which is empty for an empty shard. Raises FormatError if the file cannot be read."""
        if self.facts.empty:
            return SftRowScan(group_sizes=())
        file = open_packed_file(self.directory / PACKED)
        scan = SftRowScan(group_sizes=file.group_sizes)
        for padded_rows in file:
            rows = self._remove_padding(scan, padded_rows)
            self._count(scan, rows)
            # After a row group with invalid bounds, do not examine any sequences, because their numbers are unknown.
            scan.unsound = scan.unsound or self._find_invalid_bounds(rows)
            if scan.unsound is None:
                begins, ends = rows.bounds()
                self._count_runs(scan.stops, rows, ends)
                self._record_repeated_tokens(scan, rows, begins)
                self._sample_rows(scan, rows, begins, ends)
            scan.sequences += len(rows.starts)
        return scan

    def _remove_padding(self, scan: SftRowScan, rows: PackedRowBlock) -> PackedRowBlock:
        """Record the defects of padded rows in the scan; return the rows without padding, or unchanged if defective."""
        defects = find_row_defects(rows, self.facts.pack_size, untrained_allowed=self.untrained_allowed)
        scan.defects += defects or find_padding_defects(rows, self.facts.pad_to_multiple, self.facts.pad_id)
        scan.longest = max(scan.longest, int(self._measure_rows(rows).max(initial=0)))
        return rows if defects else rows.without_padding()

    def _measure_rows(self, rows: PackedRowBlock) -> NDArray[np.int64]:
        """Return the number of tokens in each row or, if rows are padded, the number of labels."""
        lengths = np.diff(rows.rows)
        return lengths if rows.unpadded is None else lengths - np.diff(rows.heads)

    @property
    def sound_scan(self) -> SftRowScan:
        """The scan, for checks that need sequences. Raises FormatError if some sequences have no valid bounds."""
        if self.scan.unsound is not None:
            raise FormatError(f"{self.name}: {PACKED}: {self.scan.unsound}. {REBUILD}")
        return self.scan

    @property
    def shown_sequences(self) -> list[SampledSequence]:
        """The sequences to list by kind of turn, chosen evenly from the compared sequences."""
        return self.compared_sequences[:: -(-len(self.compared_sequences) // self.shown) or 1]

    @property
    def reference_numbers(self) -> set[int]:
        """Numbers of the sampled sequences that the reference engine also encodes."""
        return {sample.number for sample in self._list_samples(BY_REFERENCE)}

    @property
    def compared_sequences(self) -> list[SampledSequence]:
        """The sequences to compare with their source rows: the first, the last, and others at equal distances."""
        return self._list_samples(self.compared)

    def _list_samples(self, count: int) -> list[SampledSequence]:
        return [
            sample
            for n in sorted(self._choose_samples(count))
            if (sample := self.sound_scan.sampled.get(n)) is not None
        ]

    def _choose_samples(self, count: int) -> set[int]:
        total = self.facts.sequences
        return {(total - 1) * i // max(1, count - 1) for i in range(count)} if total else set()

    def _count(self, scan: SftRowScan, rows: PackedRowBlock) -> None:
        """Add rows to the counts and the range of ids of a scan; record the first id outside the vocabulary."""
        scan.bins += len(rows)
        scan.tokens += len(rows.tokens)
        scan.trained += int(rows.required_mask.sum())
        if len(rows.tokens):
            size = self.bundle.vocab_size
            low, high = int(rows.tokens.min()), int(rows.tokens.max())
            scan.low = low if scan.low is None else min(scan.low, low)
            scan.high = high if scan.high is None else max(scan.high, high)
            if low < 0 or high >= size:
                index = int(np.argmax((rows.tokens < 0) | (rows.tokens >= size)))
                scan.beyond.append((_locate(rows, index)[0], int(rows.tokens[index])))

    def _find_invalid_bounds(self, rows: PackedRowBlock) -> str | None:
        counts = np.diff(rows.heads)
        begins, ends = rows.bounds()
        if (counts == 0).any() or (rows.starts[rows.heads[:-1]] != 0).any() or (ends <= begins).any():
            return (find_row_defects(rows, self.facts.pack_size) or ["the bounds of the sequences are invalid"])[0]
        return None

    def _count_runs(self, runs: StopRuns, rows: PackedRowBlock, ends: NDArray[np.int64]) -> None:
        """Count the runs of trained labels by how they end. The label at position i is token i + 1."""
        stops, turn_end = self.facts.stop_ids, self.facts.turn_end
        # A run ends before an untrained label or at the end of its sequence.
        is_end = np.ones(len(rows.required_mask), np.bool_)
        is_end[:-1] = rows.required_mask[1:] == 0
        is_end[ends - 1] = True
        run_ends = np.flatnonzero(is_end & (rows.required_mask == 1))
        # A complete run ends with a stop token, or with a stop token and the template's text after it (`turn_end`),
        # which truncation may have removed.
        endings = [ending for stop in stops for ending in {(stop,), (stop, *turn_end)}]
        complete = np.logical_or.reduce([_find_endings(rows.tokens, run_ends + 1, ending) for ending in endings])
        runs.runs += len(run_ends)
        # An incomplete run is truncated if its last label is the last token of its sequence.
        is_cut = np.isin(run_ends[~complete], np.maximum(ends - 2, 0))
        runs.unfinished += int(is_cut.sum())
        if len(inside_ends := run_ends[~complete][~is_cut]):
            row, token = _locate(rows, int(inside_ends[0]))
            label = int(rows.tokens[min(int(inside_ends[0]) + 1, len(rows.tokens) - 1)])
            runs.wrong.append((row, token, label, len(inside_ends)))

    def _record_repeated_tokens(self, scan: SftRowScan, rows: PackedRowBlock, begins: NDArray[np.int64]) -> None:
        """Record repeated special tokens within a sequence, except quotes and the unknown token."""
        repeats = rows.tokens[1:] == rows.tokens[:-1]
        repeats[begins[1:] - 1] = False  # the next token belongs to a different sequence
        indexes = np.flatnonzero(repeats)
        # Allow repeated quote tokens, because they may enclose an empty text, and repeated unknown tokens, because each
        # unknown part of a text becomes one.
        exempt = {self.bundle.definition.unknown_id, *(token.id for token in self.plan.quotes)}
        special = [token.id for token in self.bundle.special_tokens if token.id not in exempt]
        indexes = indexes[np.isin(rows.tokens[indexes], special)]
        scan.doubled.update(rows.tokens[indexes].tolist())
        if len(indexes) and scan.doubled_at is None:
            scan.doubled_at = _locate(rows, int(indexes[0]))

    def _sample_rows(
        self, scan: SftRowScan, rows: PackedRowBlock, begins: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> None:
        """Copy the sampled sequences of these rows into the scan."""
        first_number = scan.sequences
        for number in self._choose_samples(self.compared) | self._choose_samples(BY_REFERENCE):
            if first_number <= number < first_number + len(begins):
                start, stop = int(begins[number - first_number]), int(ends[number - first_number])
                row = rows.first + int(np.searchsorted(rows.heads, number - first_number, side="right")) - 1
                # Copy the values, so that the memory of the row group can be freed.
                labeled_tokens = rows.tokens[start:stop].copy(), rows.required_mask[start:stop].copy()
                scan.sampled[number] = SampledSequence(number, row, *labeled_tokens)

    @cached_property
    def origins(self) -> Origins:
        """The ordinal of its source, its source row, and its number in that row, for each packed sequence.

        Raises FormatError if the file is damaged.
        """
        return read_origins(self.directory / ORIGINS, 3)

    @cached_property
    def compared_by_row(self) -> dict[int, dict[int, list[SampledSequence]]]:
        """The sequences to compare, by the ordinal of their source and their source row.

        Sequences without an origin are omitted, because `round_trip` reports them.
        """
        samples: dict[int, dict[int, list[SampledSequence]]] = {}
        for sample in self.compared_sequences:
            if sample.number < len(self.origins):
                ordinal, row, _ = self.origins[sample.number].tolist()
                samples.setdefault(ordinal, {}).setdefault(row, []).append(sample)
        return samples

    @cached_property
    def compared_conversations(self) -> dict[int, dict[int, Conversation | Refusal]]:
        """The conversations of the sequences to compare, by the ordinal of their source and their row number.

        Rows that do not exist in the source are omitted. Raises SourceError for a source that cannot be read.
        """
        return {
            source.ordinal: dict(self.read_source(source, set(self.compared_by_row.get(source.ordinal, {}))))
            for source in self.sources
        }

    @property
    def kept_origins(self) -> Origins:
        """The origins of the sequences; none for an empty shard, which has no file of origins."""
        return np.empty((0, 3), np.int64) if self.facts.empty else self.origins

    def read_source(self, source: ChatSource, rows: set[int]) -> Iterator[tuple[int, Conversation | Refusal]]:
        """Yield the conversations in some rows of a source file, with their row numbers."""
        if not rows:
            return
        for block in source.read_rows(only=rows, as_json=self.plan.choices.reads_json):
            for number, values in zip(block.numbers, block.rows, strict=True):
                yield number, read_conversation(values, self.plan.fields, self.plan.choices)


def _locate(rows: PackedRowBlock, position: int) -> tuple[int, int]:
    """Return the row of a token, and the token's position in the row."""
    row = int(np.searchsorted(rows.rows, position, side="right")) - 1
    return rows.first + row, position - int(rows.rows[row])


def _find_endings(tokens: NDArray[np.int32], positions: NDArray[np.int64], ending: Sequence[int]) -> NDArray[np.bool_]:
    """Return, for each position, whether the tokens up to and including this position end with the ids in `ending`."""
    last_index = len(tokens) - 1
    reversed_ending = enumerate(reversed(ending))
    matches = [tokens[np.clip(positions - back, 0, last_index)] == token for back, token in reversed_ending]
    return np.logical_and.reduce(matches)
