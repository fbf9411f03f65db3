"""One shard of packed chat data opened for its proofs: one reading of its rows, one of the source rows to compare with.

Row groups are read one at a time, so memory does not grow with the shard. A row is a row of the Parquet file, a
sequence one of the conversations' sequences in it; both are counted from 0.

Entry points: `OpenedShard`; `SftRowScan`, `StopRuns`, `SampledSequence` for what the reading found.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.checks.check import BY_REFERENCE, REBUILD, SAMPLED, name_of
from dataprep_assets.errors import FormatError
from dataprep_assets.formats.packed_rows import PackedRowBlock, open_packed, row_defects
from dataprep_assets.formats.row_origins import ORIGINS, Origins, read_origins
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatPlan, ChatSource
from dataprep_assets.pipelines.blend.sft.shard import PACKED, PackedSftFacts, SftShard
from dataprep_assets.tokenization.bundle import TokenizerBundle


@dataclass(frozen=True, eq=False)
class SampledSequence:
    """A sequence of a packed file: its number and its row, its ids (int32) and its label-aligned mask (uint8)."""

    number: int
    row: int
    tokens: NDArray[np.int32]
    mask: NDArray[np.uint8]


@dataclass(kw_only=True)
class StopRuns:
    """The runs of trained labels: how many, how many end inside an answer at the end of their sequence, and of those
    that end elsewhere one a row group: row, token within the row, the label's id, and how many there are."""

    runs: int = 0
    unfinished: int = 0
    wrong: list[tuple[int, int, int, int]] = field(default_factory=list)


@dataclass(kw_only=True)
class SftRowScan:
    """The content of a packed file.

    `low` and `high` are the least and largest id, None without tokens; `beyond` is, for row groups with ids that are
    not in the vocabulary, the first: row and id. `doubled` counts special tokens that are followed by themselves, the
    first at `doubled_at`: row and token within it. `defects` are sentences. `unsound` is what is wrong with the starts
    of the first row group whose sequences have no bounds: from there on, nothing is known that needs sequences
    (`stops`, `doubled`, `sampled`).
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
    """One shard to prove: its folder and receipt, its source files, how they were encoded, and the tokenizer.

    `shard` makes it again, where every document is proven. `shown` and `compared` are the numbers of sequences that are
    shown decoded, and compared with their source rows.
    """

    directory: Path
    receipt: Receipt
    sources: Sequence[ChatSource]
    plan: ChatPlan
    bundle: TokenizerBundle
    shard: SftShard | None = None
    shown: int = 4
    compared: int = SAMPLED

    @property
    def name(self) -> str:
        """Name used in messages."""
        return name_of(self.receipt)

    @cached_property
    def facts(self) -> PackedSftFacts:
        """The receipt's facts; raises IntegrityError when one is missing."""
        return PackedSftFacts.of(self.receipt)

    @property
    def untrained_allowed(self) -> bool:
        """Whether a sequence may have nothing that is trained."""
        return self.plan.choices.untrained == "kept"

    @cached_property
    def scan(self) -> SftRowScan:
        """The content of the packed file, empty for an empty shard. Raises FormatError if it cannot be read."""
        if self.facts.empty:
            return SftRowScan(group_sizes=())
        file = open_packed(self.directory / PACKED)
        scan = SftRowScan(group_sizes=file.group_sizes)
        for rows in file:
            self._count(scan, rows)
            # behind a row group without bounds, sequences cannot be numbered: nothing is said of any from there on
            scan.unsound = scan.unsound or self._unsound(rows)
            if scan.unsound is None:
                begins, ends = rows.bounds()
                self._follow_stops(scan.stops, rows, ends)
                self._find_doubled(scan, rows, begins)
                self._sample(scan, rows, begins, ends)
            scan.sequences += len(rows.starts)
        return scan

    @property
    def sound_scan(self) -> SftRowScan:
        """The same, for checks that need sequences. Raises FormatError if some sequences have no bounds."""
        if self.scan.unsound is not None:
            raise FormatError(f"{self.name}: {PACKED}: {self.scan.unsound}. {REBUILD}")
        return self.scan

    @property
    def to_show(self) -> list[SampledSequence]:
        """The few sequences that are shown decoded, spread evenly over the file, the first and the last included."""
        return self._samples(self.shown)

    @property
    def by_reference(self) -> set[int]:
        """Numbers of the sampled sequences that the reference encodes; the certified engine encodes the others."""
        return {sample.number for sample in self._samples(BY_REFERENCE)}

    @property
    def to_compare(self) -> list[SampledSequence]:
        """The sequences that are compared with their source rows, spread in the same way."""
        return self._samples(self.compared)

    def _samples(self, count: int) -> list[SampledSequence]:
        return [
            sample
            for n in sorted(self._choose_samples(count))
            if (sample := self.sound_scan.sampled.get(n)) is not None
        ]

    def _choose_samples(self, count: int) -> set[int]:
        total = self.facts.sequences
        return {(total - 1) * i // max(1, count - 1) for i in range(count)} if total else set()

    def _count(self, scan: SftRowScan, rows: PackedRowBlock) -> None:
        scan.bins += len(rows)
        scan.tokens += len(rows.tokens)
        scan.trained += int(rows.required_mask.sum())
        scan.longest = max(scan.longest, int(np.diff(rows.rows).max(initial=0)))
        scan.defects += row_defects(rows, self.facts.pack_size, untrained_allowed=self.untrained_allowed)
        if len(rows.tokens):
            size = self.bundle.vocab_size
            low, high = int(rows.tokens.min()), int(rows.tokens.max())
            scan.low = low if scan.low is None else min(scan.low, low)
            scan.high = high if scan.high is None else max(scan.high, high)
            if low < 0 or high >= size:
                index = int(np.argmax((rows.tokens < 0) | (rows.tokens >= size)))
                scan.beyond.append((_locate(rows, index)[0], int(rows.tokens[index])))

    def _unsound(self, rows: PackedRowBlock) -> str | None:
        counts = np.diff(rows.heads)
        begins, ends = rows.bounds()
        if (counts == 0).any() or (rows.starts[rows.heads[:-1]] != 0).any() or (ends <= begins).any():
            return (row_defects(rows, self.facts.pack_size) or ["the bounds of its sequences are invalid"])[0]
        return None

    def _follow_stops(self, found: StopRuns, rows: PackedRowBlock, ends: NDArray[np.int64]) -> None:
        """Find how every run of trained labels ends. The label of position i is token i + 1."""
        stops, turn_end = self.facts.stop_ids, self.facts.turn_end
        # a run ends where the next label is not trained, and with its sequence, whatever the next one begins with
        is_end = np.ones(len(rows.required_mask), np.bool_)
        is_end[:-1] = rows.required_mask[1:] == 0
        is_end[ends - 1] = True
        run_ends = np.flatnonzero(is_end & (rows.required_mask == 1))
        # with a stop token, or with what is trained after it: a cut may fall between the two
        endings = [ending for stop in stops for ending in {(stop,), (stop, *turn_end)}]
        complete = np.logical_or.reduce([_end_with(rows.tokens, run_ends + 1, ending) for ending in endings])
        found.runs += len(run_ends)
        # where the label is the sequence's last token
        is_cut = np.isin(run_ends[~complete], np.maximum(ends - 2, 0))
        found.unfinished += int(is_cut.sum())
        if len(inside := run_ends[~complete][~is_cut]):
            row, token = _locate(rows, int(inside[0]))
            label = int(rows.tokens[min(int(inside[0]) + 1, len(rows.tokens) - 1)])
            found.wrong.append((row, token, label, len(inside)))

    def _find_doubled(self, scan: SftRowScan, rows: PackedRowBlock, begins: NDArray[np.int64]) -> None:
        repeats = rows.tokens[1:] == rows.tokens[:-1]
        repeats[begins[1:] - 1] = False  # the next token belongs to another sequence
        indexes = np.flatnonzero(repeats)
        # what the tokenizer does not know in a text becomes its unknown token, however often
        unknown = self.bundle.definition.unknown_id
        special = [token.id for token in self.bundle.special_tokens if token.id != unknown]
        indexes = indexes[np.isin(rows.tokens[indexes], special)]
        scan.doubled.update(rows.tokens[indexes].tolist())
        if len(indexes) and scan.doubled_at is None:
            scan.doubled_at = _locate(rows, int(indexes[0]))

    def _sample(
        self, scan: SftRowScan, rows: PackedRowBlock, begins: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> None:
        first_number = scan.sequences
        for number in (
            self._choose_samples(self.shown) | self._choose_samples(self.compared) | self._choose_samples(BY_REFERENCE)
        ):
            if first_number <= number < first_number + len(begins):
                start, stop = int(begins[number - first_number]), int(ends[number - first_number])
                row = rows.first + int(np.searchsorted(rows.heads, number - first_number, side="right")) - 1
                # copies, so that the row group is freed
                labeled_tokens = rows.tokens[start:stop].copy(), rows.required_mask[start:stop].copy()
                scan.sampled[number] = SampledSequence(number, row, *labeled_tokens)

    @cached_property
    def origins(self) -> Origins:
        """For each packed sequence: ordinal of its source, row there, number within the row.

        Raises FormatError if the file is damaged.
        """
        return read_origins(self.directory / ORIGINS, 3)

    @cached_property
    def compared_by_row(self) -> dict[int, dict[int, list[SampledSequence]]]:
        """The sequences to compare, by the ordinal of their source and their row there.

        Those without an origin are left out: `round_trip` reports them.
        """
        samples: dict[int, dict[int, list[SampledSequence]]] = {}
        for sample in self.to_compare:
            if sample.number < len(self.origins):
                ordinal, row, _ = self.origins[sample.number].tolist()
                samples.setdefault(ordinal, {}).setdefault(row, []).append(sample)
        return samples

    @cached_property
    def compared_rows(self) -> dict[int, dict[int, dict[str, Any]]]:
        """The source rows of the sequences to compare, by the ordinal of their source and their number there.

        Rows that a source does not have are missing. Raises SourceError for a source that cannot be read.
        """
        return {
            source.ordinal: dict(self._rows(source, set(self.compared_by_row.get(source.ordinal, {}))))
            for source in self.sources
        }

    def _rows(self, source: ChatSource, wanted: set[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        if not wanted:
            return
        for block in source.read_rows(self.plan.fields.names, wanted):
            yield from zip(block.numbers, block.rows, strict=True)


def _locate(rows: PackedRowBlock, at: int) -> tuple[int, int]:
    """The row of a token, and its position there."""
    row = int(np.searchsorted(rows.rows, at, side="right")) - 1
    return rows.first + row, at - int(rows.rows[row])


def _end_with(tokens: NDArray[np.int32], places: NDArray[np.int64], ending: Sequence[int]) -> NDArray[np.bool_]:
    """Return whether the tokens up to each place, inclusive, end with these ids."""
    last_index = len(tokens) - 1
    reversed_ending = enumerate(reversed(ending))
    matches = [tokens[np.clip(places - back, 0, last_index)] == token for back, token in reversed_ending]
    return np.logical_and.reduce(matches)
