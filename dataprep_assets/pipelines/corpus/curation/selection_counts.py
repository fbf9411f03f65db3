"""Counts of the documents of a shard: of each source, and how many are dropped of it by reason."""

from collections.abc import Iterable
from itertools import compress
from typing import Any

from pydantic import Field

from dataprep_assets.engine.artifact.build import Facts
from dataprep_assets.engine.checks.check import SHOWN
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.curation.ruled_rows import RuledRows

SELECTION = "selection"
"""The artifact of whose receipts these are."""
LANGUAGE = "language"
"""The column, of a tagger or a record, by whose values documents are counted as by their sources."""
Counts = tuple[int, int]
"""Documents and their bytes of text."""
NOTHING: Counts = (0, 0)


class SelectionCounts:
    """Counts of the rows of a shard, as in its facts."""

    def __init__(self) -> None:
        self.sources: dict[str, Counts] = {}
        self.by_rule: dict[str, dict[str, Counts]] = {}
        self.languages: dict[str, Counts] = {}
        self.by_rule_of_language: dict[str, dict[str, Counts]] = {}

    def add(self, rows: RuledRows) -> None:
        """Count the documents among some rows, and of each source and language what each reason drops."""
        sizes = rows.table["bytes"].filter(rows.good).to_pylist()
        reasons = list(compress(rows.reasons, rows.good))
        for column, counts_of, by_rule in (
            ("source", self.sources, self.by_rule),
            (LANGUAGE, self.languages, self.by_rule_of_language),
        ):
            if column not in rows.table.column_names:
                continue
            for name, size, reason in zip(
                rows.table[column].filter(rows.good).to_pylist(), sizes, reasons, strict=True
            ):
                if name is None:  # of which no language is known
                    continue
                counts_of[name] = add_counts(counts_of.get(name, NOTHING), (1, size))
                if reason is not None:
                    of_name = by_rule.setdefault(name, {})
                    of_name[reason] = add_counts(of_name.get(reason, NOTHING), (1, size))

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that say it; without languages they are as they were before languages were counted."""
        return {name: counts for name, counts in vars(self).items() if counts or name in ("sources", "by_rule")}

    @classmethod
    def total(cls, every: "Iterable[SelectionCounts | SelectionFacts]") -> "SelectionCounts":
        """The sum of many."""
        total_counts = cls()
        for part in every:
            for sums, part_sums in ((total_counts.sources, part.sources), (total_counts.languages, part.languages)):
                for name, counts in part_sums.items():
                    sums[name] = add_counts(sums.get(name, NOTHING), counts)
            for by_rule, part_rules in (
                (total_counts.by_rule, part.by_rule),
                (total_counts.by_rule_of_language, part.by_rule_of_language),
            ):
                for name, of_name in part_rules.items():
                    sums = by_rule.setdefault(name, {})
                    for rule, counts in of_name.items():
                        sums[rule] = add_counts(sums.get(rule, NOTHING), counts)
        return total_counts


def add_counts(one: Counts, other: Counts) -> Counts:
    """The sum of two."""
    return one[0] + other[0], one[1] + other[1]


def folded(counts: Iterable[Counts]) -> Counts:
    """The sum of many."""
    total = NOTHING
    for addend in counts:
        total = add_counts(total, addend)
    return total


def percent(part: int, whole: int) -> float:
    """A part in percent of a whole."""
    return round(100 * part / whole, 3) if whole else 0.0


def pair(part: Counts, whole: Counts, at: int) -> Counts:
    """Documents (0) or bytes (1) of two counts."""
    return part[at], whole[at]


class SelectionFacts(Facts):
    """Facts of a selection: the digest of the dropped rows, and of each source what it has and what each reason drops.

    The same of each language, where there is a column of that name. A count is of documents and of bytes; refused
    records are neither. `ages` are those of the shard's files
    (`file_ages`), where they decide which duplicates are kept.
    """

    dropped: str
    sources: dict[str, Counts]
    by_rule: dict[str, dict[str, Counts]]
    languages: dict[str, Counts] = Field(default_factory=dict)
    by_rule_of_language: dict[str, dict[str, Counts]] = Field(default_factory=dict)
    ages: dict[str, int] = Field(default_factory=dict)


def totals_of(receipts: Iterable[Receipt]) -> tuple[Counts, dict[str, Counts]]:
    """Return what all documents of some selections are, and what each reason drops of them."""
    sources, by_reason = by_source(receipts)
    by_rule: dict[str, Counts] = {}
    for of_source in by_reason.values():
        for rule, counts in of_source.items():
            by_rule[rule] = add_counts(by_rule.get(rule, NOTHING), counts)
    return folded(sources.values()), by_rule


def source_rows(receipts: Iterable[Receipt]) -> list[dict[str, Any]]:
    """A row for each source, those of which most is dropped first."""
    sources, by_reason = by_source(receipts)
    rows: list[dict[str, Any]] = []
    for source, (documents, size) in sources.items():
        documents_dropped, lost = folded(by_reason.get(source, {}).values())
        worst = max(by_reason.get(source, {}).items(), key=lambda item: item[1], default=("", NOTHING))[0]
        rows.append(
            {
                "source": source,
                "documents": documents,
                "dropped": documents_dropped,
                "dropped_%": percent(documents_dropped, documents),
                "dropped_bytes_%": percent(lost, size),
                "most_by": worst,
            }
        )
    return sorted(rows, key=lambda row: (-row["dropped_%"], row["source"]))[:SHOWN]


def counted_in(receipts: Iterable[Receipt]) -> SelectionCounts:
    """The counts of some selections."""
    return SelectionCounts.total(SelectionFacts.of(receipt) for receipt in receipts)


def by_source(receipts: Iterable[Receipt]) -> tuple[dict[str, Counts], dict[str, dict[str, Counts]]]:
    """Return what each source has, and what each reason drops of it."""
    total = counted_in(receipts)
    return total.sources, total.by_rule
