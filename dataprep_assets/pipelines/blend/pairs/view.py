"""Views of preference pairs (`<dataset>/<view>`): files for trainers that do not read the run's Parquet files.

A view has one file per split. It is defined by two functions: one converts a shard's row into rows of the view's
format, the other converts them back into prompts and answers, which a check compares with the shards.

Entry points: `PreferenceView`, `LabeledAnswer`, `PairsSplit`, `PreferenceViewFacts`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from dataprep_assets.engine.checks.check import Check
from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.formats import json_lines, parquet_rows
from dataprep_assets.formats.conversations.preference_rows import (
    Messages,
    PreferenceRow,
    read_lengths,
    read_preferences,
)
from dataprep_assets.formats.conversations.sft_rows import split_name
from dataprep_assets.formats.json_columns import to_json
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.pairs.pairs import PAIRS
from dataprep_assets.pipelines.blend.pairs.shard import PairsFacts
from dataprep_assets.pipelines.blend.pairs.views import VIEWS
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
from dataprep_assets.stores.files import create_durably

_ROW_GROUP = 1000
"""Number of rows per Parquet row group of a view."""


class LabeledAnswer(NamedTuple):
    """A prompt with one answer; `is_chosen` is False for a rejected answer."""

    prompt: Messages
    answer: Messages
    is_chosen: bool


class PreferenceViewFacts(BlendViewFacts):
    """Facts of a view: numbers of rows and of answers by split."""

    answers: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class PairsSplit(RunSplit[PairsFacts]):
    """A split of a finished run, with its shards in the order of the run's files."""

    shards_name: ClassVar[str] = PAIRS
    shard_facts: ClassVar[type[PairsFacts]] = PairsFacts
    documents_fact: ClassVar[str] = "pairs"

    def read_rows(self, store: ArtifactStore) -> Iterator[PreferenceRow]:
        """Yield the rows of all shards, in order."""
        for shard in self.shards:
            for rows in read_preferences(shard.fetch_file(store)):
                yield from rows

    def read_answers(self, store: ArtifactStore) -> Iterator[LabeledAnswer]:
        """Yield the answers of all rows; a pair's chosen answer is first."""
        for row in self.read_rows(store):
            for is_chosen, answer in ((True, row.chosen_answer), (False, row.rejected_answer)):
                if answer is not None:
                    yield LabeledAnswer(row.prompt, answer.messages, is_chosen)


@dataclass(frozen=True, kw_only=True)
class PreferenceView(BlendView[PairsSplit]):
    """A trainer's format for preferences; the artifact has the view's name.

    Attributes:
        records: Yields the format's rows for a shard's row.
        answers: Yields the prompts and answers of one of the format's rows; a pair's chosen answer is first.
        sidecars: Returns the name and content of each additional file, given the dataset's name and the splits.
        is_parquet: Whether the files are Parquet with JSON columns instead of JSON Lines.
        per_answer: Whether each row has one answer, so that labeled answers can be written; otherwise each has a pair.
        texts_only: Whether the format supports only text, with one message per answer.
    """

    reserved = frozenset({PAIRS, RUNS})
    available = VIEWS
    split_type = PairsSplit
    facts_type = PreferenceViewFacts
    contents = "pairs"
    shown_facts = ("rows",)

    records: Callable[[PreferenceRow], Iterable[dict[str, Any]]]
    answers: Callable[[Mapping[str, Any]], Iterable[LabeledAnswer]]
    sidecars: Callable[[str, Sequence[str]], Mapping[str, bytes]] = lambda *_: {}
    is_parquet: bool = False
    per_answer: bool = False
    texts_only: bool = False

    def get_file_name(self, split: str) -> str:
        """Return the name of a split's file."""
        return f"{split_name(split)}.{'parquet' if self.is_parquet else 'jsonl'}"

    @property
    def checks(self) -> tuple[Check[OpenedBlendView[Any]], ...]:
        return CHECKS

    def require_writable(self, blend: BlendDeclaration, splits: Sequence[PairsSplit]) -> None:
        pairs, labeled, plain = (
            sum(split.sum_fact(name) for split in splits) for name in ("pairs", "labeled", "plain")
        )
        name = f"{blend.dataset}: the view {self.name}"
        if labeled and not self.per_answer:
            amount = "some rows" if blend.sensitive else f"{labeled:,} of {count_of(pairs, 'row')}"
            raise ConfigError(
                f"{name} needs two answers per row. Only one answer is labeled in {amount}. Use the view `kto`"
            )
        if plain < pairs and self.texts_only:
            amount = "some pairs" if blend.sensitive else f"{pairs - plain:,} of {count_of(pairs, 'pair')}"
            raise ConfigError(
                f"{name} supports only text and one answer per side, not the tools, calls, reasoning, template "
                f"variables or several answers in {amount}. Use the run's Parquet or the view `kto`, or move these "
                "rows to a separate blend"
            )

    def write_files(self, splits: Sequence[PairsSplit], writer: BlendViewWriter) -> None:
        for split in splits:
            path = writer.target / self.get_file_name(split.split)
            # Keep an existing file, because a file gets its final name only when it is complete, and its content
            # depends only on its own split.
            if not path.exists():
                self.write_file(path, (record for row in split.read_rows(writer.store) for record in self.records(row)))
        for name, content in self.sidecars(writer.blend.dataset, [split.split for split in splits]).items():
            if not (writer.target / name).exists():
                with create_durably(writer.target / name) as file:
                    file.write(content)

    def write_file(self, path: Path, records: Iterator[dict[str, Any]]) -> None:
        """Write rows in the view's format to a new file."""
        if self.is_parquet:
            parquet_rows.write_rows(path, parquet_rows.parse_schema(self.columns), records, group=_ROW_GROUP)
        else:
            json_lines.write_lines(path, map(to_json, records))

    def read_file(self, path: Path) -> Iterator[Mapping[str, Any]]:
        """Yield the rows of a file of the view. Raises FormatError if the file cannot be read."""
        if self.is_parquet:
            return parquet_rows.read_rows(path, parquet_rows.parse_schema(self.columns), group=_ROW_GROUP)
        return json_lines.read_lines(path)

    def measure(self, splits: Sequence[PairsSplit], store: ArtifactStore) -> PreferenceViewFacts:
        answers = {s.split: 2 * s.sum_fact("pairs") - s.sum_fact("labeled") for s in splits}
        return PreferenceViewFacts(
            view=self.name,
            rows=answers if self.per_answer else {s.split: s.sum_fact("pairs") for s in splits},
            answers=answers,
        )

    def find_layout_defects(self, opened: OpenedBlendView[PairsSplit]) -> Iterator[str]:
        directory, receipt, splits = opened.directory, opened.receipt, opened.splits
        sidecars = self.sidecars(receipt.dataset, [split.split for split in splits])
        for name, content in sidecars.items():
            if (directory / name).read_bytes() != content:
                yield f"{directory / name}: does not describe the splits of this view"
        files = {self.get_file_name(split.split) for split in splits}
        for name in sorted({record.path for record in receipt.files} - files - sidecars.keys()):
            yield f"{directory / name}: belongs to no split"
        for split in splits:
            for number, record in enumerate(self.read_file(directory / self.get_file_name(split.split))):
                if record.keys() != self.columns.keys():
                    yield f"{split.split}: row {number} must have the keys {', '.join(self.columns)}"
                    break

    def find_differences(self, opened: OpenedBlendView[PairsSplit], split: PairsSplit) -> Iterator[str]:
        records = self.read_file(opened.directory / self.get_file_name(split.split))
        answers = (answer for record in records for answer in self.answers(record))
        return compare_rows(split.split, "answer", answers, split.read_answers(opened.store), _compare_answers)

    def describe(self, facts: PreferenceViewFacts) -> tuple[str, Mapping[str, int]]:
        rows, answers = sum(facts.rows.values()), sum(facts.answers.values())
        sentence = f"{count_of(answers, 'answer')} with their prompts, equal to the run's pairs."
        return sentence, {"rows": rows, "answers": answers}

    def compute_row_offsets(self, shard: UsedShard[PairsFacts], store: ArtifactStore) -> Sequence[int]:
        if not self.per_answer:
            return range(shard.facts.pairs + 1)
        answers = (read_lengths(shard.fetch_file(store))[:, 1:] >= 0).sum(axis=1).tolist()
        return list(accumulate(answers, initial=0))

    def find_file(self, split: PairsSplit, _: int) -> tuple[str, int]:
        return self.get_file_name(split.split), 0


def _compare_answers(answer: LabeledAnswer, run_answer: LabeledAnswer) -> str | None:
    parts = zip(("prompt", "answer", "label"), answer, run_answer, strict=True)
    return next((name for name, value, run_value in parts if value != run_value), None)


CHECKS: tuple[Check[OpenedBlendView[Any]], ...] = (
    Check("matches_pairs", "The prompts and answers are identical to the run's pairs, in the same order.", matches_run),
    LAYOUT_VALID,
)
