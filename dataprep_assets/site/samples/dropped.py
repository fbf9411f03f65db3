"""Dropped rows as facts of pages: by rule, near-duplicates with the kept document, documents with a benchmark item.

No trainer's file has these rows, so their texts are read from the source, once for all pages of a dataset.

Entry point: `DroppedRows`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from random import Random
from typing import Any

from dataprep_assets.curation.benchmarks.columns import BENCHMARK, OVERLAP
from dataprep_assets.curation.selection import DUPLICATE
from dataprep_assets.engine.trace.document_table import DocumentTable, DroppedSample
from dataprep_assets.engine.trace.sample import SampledRow
from dataprep_assets.errors import DataprepError, count_of
from dataprep_assets.site.samples.differences import mark_differences, mark_shared
from dataprep_assets.site.samples.facts import MAX_CHARACTERS, MAX_ROWS, SEED, Panel, Row, Run, SampleFacts
from dataprep_assets.site.samples.kept import build_kept_row, describe_place, format_command, format_value
from dataprep_assets.site.samples.texts import cut_text
from dataprep_assets.site.stored import StoredDataset
from dataprep_assets.table import format_share

_SOURCE_NOTE = "Trainer files have no dropped rows. These texts come from the source files."
_SourceRow = tuple[str, int]
"""Source file and row."""


class DroppedRows:
    """A sample of the dropped rows of a dataset, with their texts, which are read on first use."""

    def __init__(self, dataset: StoredDataset) -> None:
        self._dataset = dataset

    @cached_property
    def _table(self) -> DocumentTable:
        return self._dataset.component.documents(self._dataset.store)

    @cached_property
    def _samples(self) -> Mapping[str, DroppedSample]:
        return {sample.reason: sample for sample in self._table.sample_drops(MAX_ROWS, SEED)}

    @cached_property
    def _texts(self) -> Mapping[_SourceRow, tuple[str, str]]:
        """The text of each sampled row, or a sentence that says why it is missing."""
        # Leave out rejected records, whose text the page does not show.
        rows = [row for sample in self._samples.values() for row in sample.rows if row["bytes"] is not None]
        ordered = sorted(rows, key=lambda row: (str(row.get("source", "")), row["file"], row["row"]))
        return {(row["file"], row["row"]): (text, problem) for row, text, problem in _read_texts(self._table, ordered)}

    def describe_rule(self, reason: str) -> SampleFacts:
        """Return the facts of the page of a reason: a rule, or a defect of records."""
        sample = self._samples[reason]
        return self._build_facts(sample, (self._build_row(sample, row) for row in sample.rows), [])

    def describe_duplicates(self) -> SampleFacts:
        """Return the facts of the page of duplicates, each next to the kept document."""
        sample, problems = self._samples[DUPLICATE], list[str]()
        kept_rows = self._read_kept([row["representative"] for row in sample.rows], problems)
        rows = (self._build_pair(sample, row, kept_rows.get(_parse_name(row["representative"]))) for row in sample.rows)
        return self._build_facts(sample, rows, problems)

    def describe_contaminated(self) -> SampleFacts:
        """Return the facts of the page of documents with a benchmark item, each next to the item."""
        sample, problems, items = self._samples[BENCHMARK], list[str](), dict[str, Mapping[str, str]]()
        for name in {row.get(BENCHMARK) for row in sample.rows} - {None}:
            try:
                items[str(name)] = self._table.find_benchmark_item(str(name))
            except (DataprepError, OSError) as error:
                problems.append(f"The item {name} cannot be shown: {error}")
        rows = (self._build_contaminated(sample, row, items.get(str(row.get(BENCHMARK)), {})) for row in sample.rows)
        return self._build_facts(sample, rows, sorted(problems))

    def _build_facts(self, sample: DroppedSample, rows: Iterable[Row], problems: Sequence[str]) -> SampleFacts:
        summary = f"{count_of(sample.count, 'row was', 'rows were')} dropped for this reason."
        if sample.count > len(sample.rows):
            summary += f" The page shows {count_of(len(sample.rows), 'random row')}."
        rule = [f"Rule: {sample.drops}"] if sample.drops else []
        row_facts = list(rows)
        # Mix the files, because a large one could otherwise fill the beginning of the page.
        Random(SEED).shuffle(row_facts)
        missing = sorted({problem for row in sample.rows if (problem := self._find_text(row)[1])})
        return SampleFacts(introduction=[summary, *rule, _SOURCE_NOTE], rows=row_facts, problems=[*problems, *missing])

    def _find_text(self, row: Mapping[str, Any]) -> tuple[str, str]:
        return self._texts.get((row["file"], row["row"]), ("", ""))

    def _build_row(self, sample: DroppedSample, row: Mapping[str, Any], panels: Sequence[Panel] | None = None) -> Row:
        text, problem = self._find_text(row)
        summary, omitted = cut_text(text)
        names = list(dict.fromkeys([*sample.columns, *(name for name in ("source", "language") if name in row)]))
        has_text = row["bytes"] is not None and not problem
        return Row(
            source=f"{row['file']}:{row['row']}",
            values=[(name, format_value(row[name])) for name in names],
            command=format_command(self._dataset.name, row["file"], row["row"]),
            panels=panels or ([Panel(heading="text", runs=[Run(summary)], omitted=omitted)] if has_text else []),
            notes=() if has_text else [problem or "The record was rejected before the rules, so it has no text."],
        )

    def _build_pair(self, sample: DroppedSample, row: Mapping[str, Any], kept_rows: SampledRow | None) -> Row:
        name = row["representative"]
        similarity = [] if row["similarity"] is None else [("similarity", format_share(row["similarity"]))]
        text, problem = self._find_text(row)
        if kept_rows is None or problem:
            reason = problem or f"The kept document {name} is not in this dataset's files, so it is not shown."
            bare = self._build_row(sample, row)
            return replace(bare, values=[*similarity, *bare.values], notes=[reason])
        shown_kept = build_kept_row(self._dataset.name, kept_rows)
        kept_text = "".join(part.document_text for part in kept_rows.parts)
        (dropped_text, omitted), (kept_text_part, kept_omitted) = cut_text(text), cut_text(kept_text)
        runs, other_runs = mark_differences(dropped_text, kept_text_part)
        panels = [
            Panel(heading="dropped", runs=runs, omitted=omitted),
            Panel(heading=f"kept: {name}", runs=other_runs, omitted=kept_omitted or shown_kept.panels[0].omitted),
        ]
        pair = self._build_row(sample, row, panels)
        locations = [f"kept document: {describe_place(location)}" for location in kept_rows.locations]
        return replace(pair, values=[*similarity, *pair.values], locations=locations)

    def _build_contaminated(self, sample: DroppedSample, row: Mapping[str, Any], item: Mapping[str, str]) -> Row:
        bare = self._build_row(sample, row)
        if not row.get(BENCHMARK):
            return bare
        item_text, item_omitted = cut_text("\n\n".join(f"{location}: {part}" for location, part in item.items()))
        item_panel = Panel(
            heading=f"benchmark item {row[BENCHMARK]}", runs=[Run(item_text)] if item else [], omitted=item_omitted
        )
        # Compare with the field that matched, if the column names one.
        field = row[BENCHMARK].split(":")[2:]
        matched = " ".join(part for location, part in item.items() if not field or location.split(".")[0] == field[0])
        runs, omitted = mark_shared(self._find_text(row)[0], matched, MAX_CHARACTERS)
        panels = (
            [Panel(heading="text", runs=runs, omitted=omitted), item_panel] if item and bare.panels else bare.panels
        )
        values = [("benchmark", row[BENCHMARK])]
        if row.get(OVERLAP) is not None:
            values.append(("share of its n-grams", format_share(row[OVERLAP])))
        other_values = [value for value in bare.values if value[0] != OVERLAP]
        return replace(bare, panels=panels, values=[*values, *other_values])

    def _read_kept(self, names: Sequence[str | None], problems: list[str]) -> Mapping[_SourceRow, SampledRow]:
        """Return the kept documents as the trainer reads them, by source file and row."""
        locations = dict.fromkeys(_parse_name(name) for name in names if name is not None)
        try:
            rows = list(self._dataset.component.tracer(self._dataset.store).sample_rows(locations))
        except (DataprepError, OSError) as error:
            problems.append(f"The kept documents cannot be shown: {error}")
            return {}
        return {(row.file, row.row): row for row in rows}


def _parse_name(name: str | None) -> _SourceRow:
    # Split at the last colon, because a file name may contain colons.
    file, _, row = (name or "").rpartition(":")
    return file, int(row or 0)


def _read_texts(
    table: DocumentTable, rows: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Mapping[str, Any], str, str]]:
    """Yield each row with its text, or with a sentence that says why it cannot be read."""
    position = 0
    while position < len(rows):
        problem = ""
        try:
            for row in table.add_texts(rows[position:]):
                yield row, row["text"] or "", ""
                position += 1
        except (DataprepError, OSError) as error:
            problem = f"Texts cannot be read from the source: {error}"
        # Go on with the next file, because the other rows of an unreadable file cannot be read either.
        while problem and position < len(rows):
            yield rows[position], "", problem
            position += 1
            if position == len(rows) or rows[position]["file"] != rows[position - 1]["file"]:
                break
