"""Counts of a shard's documents per source, and of the documents that rules drop per source and reason.

Entry points: `DropCounts`, `DropFacts`; `count_by_source` and `sum_totals` for receipts with these facts.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import Field

from dataprep_assets.engine.artifact.build import Facts
from dataprep_assets.engine.checks.check import SHOWN
from dataprep_assets.integrity.receipt import Receipt

LANGUAGE = "language"
"""Column, from a tagger or the record, whose values are counted in the same way as sources."""
COUNT_COLUMNS = ("source", LANGUAGE, "bytes")
"""Columns with the values that are counted."""
Counts = tuple[int, int]
"""A number of documents, and the bytes of their texts."""
NOTHING: Counts = (0, 0)


class DropCounts:
    """Counts of a shard's rows, in the form of `DropFacts`."""

    def __init__(self) -> None:
        self.sources: dict[str, Counts] = {}
        self.by_rule: dict[str, dict[str, Counts]] = {}
        self.languages: dict[str, Counts] = {}
        self.by_rule_of_language: dict[str, dict[str, Counts]] = {}

    def add(self, columns: Mapping[str, Sequence[Any]], reasons: Sequence[str | None]) -> None:
        """Count some documents and, by source and language, the drops by reason.

        `columns` has the values of `COUNT_COLUMNS`; `language` is optional. `reasons` has the rule that drops
        each document; None for other documents.
        """
        for column, counts_by_name, by_rule in (
            ("source", self.sources, self.by_rule),
            (LANGUAGE, self.languages, self.by_rule_of_language),
        ):
            if column not in columns:
                continue
            for name, size, reason in zip(columns[column], columns["bytes"], reasons, strict=True):
                # Skip an unknown language, and values of a tagger whose column of this name is not text.
                if not isinstance(name, str):
                    continue
                counts_by_name[name] = add_counts(counts_by_name.get(name, NOTHING), (1, size))
                if reason is not None:
                    rule_counts = by_rule.setdefault(name, {})
                    rule_counts[reason] = add_counts(rule_counts.get(reason, NOTHING), (1, size))

    @property
    def facts(self) -> dict[str, Any]:
        """Counts as facts; empty language counts are omitted, as in facts written before languages were counted."""
        return {name: counts for name, counts in vars(self).items() if counts or name in ("sources", "by_rule")}

    @classmethod
    def total(cls, all_counts: "Iterable[DropCounts | DropFacts]") -> "DropCounts":
        """Return the sums of the counts of several shards, by source, language and reason."""
        total_counts = cls()
        for part in all_counts:
            for sums, part_sums in ((total_counts.sources, part.sources), (total_counts.languages, part.languages)):
                for name, counts in part_sums.items():
                    sums[name] = add_counts(sums.get(name, NOTHING), counts)
            for by_rule, part_rules in (
                (total_counts.by_rule, part.by_rule),
                (total_counts.by_rule_of_language, part.by_rule_of_language),
            ):
                for name, rule_counts in part_rules.items():
                    sums = by_rule.setdefault(name, {})
                    for rule, counts in rule_counts.items():
                        sums[rule] = add_counts(sums.get(rule, NOTHING), counts)
        return total_counts


def add_counts(counts: Counts, other_counts: Counts) -> Counts:
    """Return the sum of two counts: of their documents, and of their bytes."""
    return counts[0] + other_counts[0], counts[1] + other_counts[1]


def sum_counts(counts: Iterable[Counts]) -> Counts:
    """Return the sum of any number of counts: of their documents, and of their bytes."""
    total = NOTHING
    for addend in counts:
        total = add_counts(total, addend)
    return total


def compute_percent(part: int, total: int) -> float:
    """Return a part in percent of a whole, rounded to three digits; 0 if the whole is 0."""
    return round(100 * part / total, 3) if total else 0.0


def select_counts(some_counts: Counts, all_counts: Counts, position: int) -> Counts:
    """Return the documents (`position` 0) or bytes (`position` 1) of two counts."""
    return some_counts[position], all_counts[position]


class DropFacts(Facts):
    """Counts of documents and dropped documents as facts, per source and, with a column `language`, per language.

    Rejected records are not counted.
    """

    sources: dict[str, Counts]
    by_rule: dict[str, dict[str, Counts]]
    languages: dict[str, Counts] = Field(default_factory=dict)
    by_rule_of_language: dict[str, dict[str, Counts]] = Field(default_factory=dict)


def sum_totals(receipts: Iterable[Receipt]) -> tuple[Counts, dict[str, Counts]]:
    """Return the counts of all documents in artifacts with `DropFacts`, and the dropped counts by reason."""
    sources, by_reason = count_by_source(receipts)
    by_rule: dict[str, Counts] = {}
    for source_counts in by_reason.values():
        for rule, counts in source_counts.items():
            by_rule[rule] = add_counts(by_rule.get(rule, NOTHING), counts)
    return sum_counts(sources.values()), by_rule


def build_source_rows(receipts: Iterable[Receipt]) -> list[dict[str, Any]]:
    """Build a table row for each source, largest dropped share first."""
    sources, by_reason = count_by_source(receipts)
    rows: list[dict[str, Any]] = []
    for source, (documents, size) in sources.items():
        documents_dropped, lost = sum_counts(by_reason.get(source, {}).values())
        worst = max(by_reason.get(source, {}).items(), key=lambda item: item[1], default=("", NOTHING))[0]
        rows.append(
            {
                "source": source,
                "documents": documents,
                "dropped": documents_dropped,
                "dropped_%": compute_percent(documents_dropped, documents),
                "dropped_bytes_%": compute_percent(lost, size),
                "top_rule": worst,
            }
        )
    return sorted(rows, key=lambda row: (-row["dropped_%"], row["source"]))[:SHOWN]


def sum_drop_facts(receipts: Iterable[Receipt]) -> DropCounts:
    """Return the summed counts of artifacts with `DropFacts`."""
    return DropCounts.total(DropFacts.from_receipt(receipt) for receipt in receipts)


def count_by_source(receipts: Iterable[Receipt]) -> tuple[dict[str, Counts], dict[str, dict[str, Counts]]]:
    """Return counts by source, and dropped counts by source and reason."""
    total = sum_drop_facts(receipts)
    return total.sources, total.by_rule
