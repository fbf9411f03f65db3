"""Views of RL records (`<dataset>/<view>`): the run's records in the file formats of RL trainers.

The files of a finished run (`runs/<run hash>/splits/<split>.jsonl`) have the records of each split, repeated in
proportion to the weights. A view has the same records in the same order.

Entry points: `RecordView`, `RecordSplit`, `SplitRecord`, `RecordViewFacts`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import orjson

from dataprep_assets.engine.checks.check import Check
from dataprep_assets.errors import BadRecordError, count_of
from dataprep_assets.formats.conversations.sft_rows import split_name
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore, FileRef
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.finished_shards import FinishedShard, find_data_file, list_suffixes
from dataprep_assets.pipelines.blend.output.realized_shares import repeat_shards
from dataprep_assets.pipelines.blend.output.trainer_entry import format_split_path, get_manifest_key
from dataprep_assets.pipelines.blend.rl.record_parts import PartPaths, RecordParts
from dataprep_assets.pipelines.blend.rl.rl_jsonl import RL_JSONL, read_lines
from dataprep_assets.pipelines.blend.rl.shard import RlJsonlFacts
from dataprep_assets.pipelines.blend.rl.views import VIEWS
from dataprep_assets.pipelines.blend.runs import RUNS
from dataprep_assets.pipelines.blend.view import (
    LAYOUT_VALID,
    BlendView,
    BlendViewFacts,
    BlendViewWriter,
    OpenedBlendView,
    RunSplit,
    UsedShard,
    compare_rows,
    matches_run,
)

_SHARD_BYTES = 1 << 28
"""Maximum total size in bytes of the shards that are written to one file of a view, unless it is a single shard."""


class RecordViewFacts(BlendViewFacts):
    """Facts of a view, by split: numbers of records with an expected answer and with tools, and names of files."""

    answers: dict[str, int]
    tools: dict[str, int]
    files: dict[str, tuple[str, ...]]


class SplitRecord(NamedTuple):
    """A record of a split: its number, dataset, line and parts, and its location for messages."""

    number: int
    dataset: str
    line: bytes
    parts: RecordParts
    location: str

    def refuse(self, error: Exception) -> BadRecordError:
        """Return an error with the message of `error`, and with the record's location."""
        return BadRecordError(f"{self.location}: {error}")


@dataclass(frozen=True, kw_only=True)
class RecordSplit(RunSplit[RlJsonlFacts]):
    """A split of a finished run, with its shards in the order of the run's file, including repetitions."""

    shards_name: ClassVar[str] = RL_JSONL
    shard_facts: ClassVar[type[RlJsonlFacts]] = RlJsonlFacts
    documents_fact: ClassVar[str] = "records"

    run_file: str
    fields: PartPaths

    @classmethod
    def from_run(
        cls, blend: BlendDeclaration, run: Artifact, _: Receipt, split: str, shards: Sequence[FinishedShard]
    ) -> Self:
        (suffix,) = list_suffixes(blend)
        repeated_shards = repeat_shards(shards)
        files = [FileRef(shard.artifact, find_data_file(blend, shard.receipt, suffix)) for shard in repeated_shards]
        return cls(
            split=split,
            run=run,
            run_file=format_split_path(get_manifest_key(split), suffix),
            fields=PartPaths.from_options(blend.rl_options),
            shards=cls.build_used_shards(repeated_shards, files),
        )

    @property
    def name(self) -> str:
        """The split's name in the view's files."""
        return split_name(self.split)

    @property
    def rows(self) -> int:
        """Number of records."""
        return self.sum_fact("records")

    @property
    def tokens(self) -> int:
        return 0

    @cached_property
    def groups(self) -> list[range]:
        """For each file of a view, the range of consecutive shards that it contains; small shards share a file."""
        groups: list[range] = []
        total = 0
        for index, shard in enumerate(self.shards):
            size = shard.file.record.bytes
            if groups and total + size <= _SHARD_BYTES:
                groups[-1] = range(groups[-1].start, index + 1)
                total += size
            else:
                groups.append(range(index, index + 1))
                total = size
        return groups

    @cached_property
    def _starts(self) -> list[int]:
        """The number in the split of each shard's first record, followed by the total number of records."""
        return list(accumulate((shard.facts.records for shard in self.shards), initial=0))

    def read_records(self, store: ArtifactStore, group: int | None = None) -> Iterator[SplitRecord]:
        """Yield the records of the shards in a file (`group`), or of all shards.

        Raises BadRecordError for a record without a unique prompt.
        """
        for index in range(len(self.shards)) if group is None else self.groups[group]:
            shard = self.shards[index]
            for number, line in enumerate(read_lines(shard.fetch_file(store))):
                location = f"{shard.artifact}: line {number + 1}"
                yield self._build_record(self._starts[index] + number, shard.dataset, line, location)

    def read_run_records(self, store: ArtifactStore) -> Iterator[SplitRecord]:
        """Yield the records in the run's file of the split, to compare them with records from the shards."""
        path = store.local(self.run, [self.run_file]) / self.run_file
        shard = 0
        for number, line in enumerate(read_lines(path)):
            while shard + 1 < len(self.shards) and number >= self._starts[shard + 1]:
                shard += 1
            yield self._build_record(number, self.shards[shard].dataset, line, f"{path}: line {number + 1}")

    def _build_record(self, number: int, dataset: str, line: bytes, location: str) -> SplitRecord:
        try:
            return SplitRecord(number, dataset, line, self.fields.split(orjson.loads(line)), location)
        except (BadRecordError, orjson.JSONDecodeError) as error:
            raise BadRecordError(f"{location}: {error}") from None


@dataclass(frozen=True, kw_only=True)
class RecordView(BlendView[RecordSplit]):
    """A trainer's format for RL records; the artifact has the view's name.

    Attributes:
        write: Writes all splits into a view under construction. It may resume from finished files in the folder.
        read: Yields the rows of a split in order, given the view's directory and the split.
        difference: Returns the name of the part in which a row differs from its record; None if they are equal.
        defects: Yields a sentence for each part of the finished layout that a trainer would not accept, given the
            view's directory, its receipt, the splits and the store.
        files: Returns the names of a split's files.
    """

    reserved = frozenset({RL_JSONL, RUNS})
    available = VIEWS
    split_type = RecordSplit
    facts_type = RecordViewFacts
    contents = "records"
    shown_facts = ("rows", "answers", "tools")

    write: Callable[[Sequence[RecordSplit], BlendViewWriter], None]
    read: Callable[[Path, RecordSplit], Iterator[Any]]
    difference: Callable[[Any, SplitRecord], str | None]
    defects: Callable[[Path, Receipt, Sequence[RecordSplit], ArtifactStore], Iterator[str]]
    files: Callable[[RecordSplit], list[str]]

    @property
    def checks(self) -> tuple[Check[OpenedBlendView[Any]], ...]:
        return CHECKS

    def identify_rows(self, shard: UsedShard[RlJsonlFacts]) -> Any:
        return [shard.dataset, shard.content]

    def write_files(self, splits: Sequence[RecordSplit], writer: BlendViewWriter) -> None:
        self.write(splits, writer)

    def measure(self, splits: Sequence[RecordSplit], store: ArtifactStore) -> RecordViewFacts:
        answers, tools = dict.fromkeys((s.split for s in splits), 0), dict.fromkeys((s.split for s in splits), 0)
        for split in splits:
            for record in split.read_run_records(store):
                answers[split.split] += record.parts.answer is not None
                tools[split.split] += record.parts.tools is not None
        return RecordViewFacts(
            view=self.name,
            rows={s.split: s.rows for s in splits},
            answers=answers,
            tools=tools,
            files={s.split: tuple(self.files(s)) for s in splits},
        )

    def find_layout_defects(self, opened: OpenedBlendView[RecordSplit]) -> Iterator[str]:
        return self.defects(opened.directory, opened.receipt, opened.splits, opened.store)

    def find_differences(self, opened: OpenedBlendView[RecordSplit], split: RecordSplit) -> Iterator[str]:
        rows = self.read(opened.directory, split)
        return compare_rows(split.split, "record", rows, split.read_run_records(opened.store), self.difference)

    def describe(self, facts: RecordViewFacts) -> tuple[str, Mapping[str, int]]:
        records, answers = sum(facts.rows.values()), sum(facts.answers.values())
        sentence = f"{count_of(records, 'record')}, {count_of(answers, 'expected answer')}, equal to the run's records."
        return sentence, {"records": records, "answers": answers}

    def compute_row_offsets(self, shard: UsedShard[RlJsonlFacts], _: ArtifactStore) -> Sequence[int]:
        return range(shard.facts.records + 1)

    def find_file(self, split: RecordSplit, index: int) -> tuple[str, int]:
        files = self.files(split)
        if len(files) == 1:
            return files[0], 0
        number = next(number for number, shards in enumerate(split.groups) if index in shards)
        return files[number], split.groups[number].start

    def format_lines(self, location: str, facts: RecordViewFacts) -> Iterator[str]:
        yield from self.trainer(location, facts)
        if without := sum(facts.rows.values()) - sum(facts.answers.values()):
            yield f"{self.name}: {count_of(without, 'record has', 'records have')} no expected answer (`rl.answer`)"


CHECKS: tuple[Check[OpenedBlendView[Any]], ...] = (
    Check(
        "matches_records", "The rows have the values and types of the run's records, in the same order.", matches_run
    ),
    LAYOUT_VALID,
)
