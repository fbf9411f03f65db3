"""Distributions of a dataset's documents: histograms with the rules' thresholds, languages, and drops by source.

They are read from the document table, or, without one, from the files with the tokens. Both are read only up to
`MAX_BYTES`, because larger ones would take longer than a page is worth. A command draws larger tables.

Entry point: `describe_distributions`.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dataprep_assets.curation.table_sums import count_values
from dataprep_assets.engine.trace.document_table import DocumentTable
from dataprep_assets.engine.trace.histogram import ColumnHistogram, format_number
from dataprep_assets.errors import ConfigError, DataprepError, count_of
from dataprep_assets.site.charts import Chart, draw_bars, draw_histogram
from dataprep_assets.site.stored import StoredDataset

MAX_BYTES = 256 << 20
"""Maximum size of the document tables, or of the files with lengths, that a page reads."""
Rows = tuple[tuple[str, ...], tuple[tuple[Any, ...], ...]]
"""Header and rows of a table."""
_TABLE, _LANGUAGE = "documents", "language"
_MAX_LANGUAGES = 12
_MAX_SOURCES = 20


@dataclass(frozen=True)
class Histogram:
    """A chart of a column, with a sentence for each rule over it, and the column's quantiles."""

    chart: Chart
    rules: tuple[str, ...] = ()
    quantiles: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Distributions:
    """Distributions of a dataset's documents.

    Attributes:
        histograms: Charts of lengths, and of the columns that rules compare.
        languages: Documents by language.
        by_source: Documents of each source, and those that each rule drops: header and rows.
        rules: Rule → the expression that drops.
        command: The command that draws the histograms, if the tables are too large for a page.
    """

    histograms: tuple[Histogram, ...] = ()
    languages: Chart | None = None
    by_source: Rows | None = None
    rules: Mapping[str, str] = field(default_factory=dict)
    command: str = ""


def describe_distributions(dataset: StoredDataset) -> Distributions:
    """Return the distributions of a dataset; none for a sensitive one."""
    if dataset.privacy.closed:
        return Distributions()
    try:
        table = dataset.component.documents(dataset.store)
    except ConfigError:  # the dataset declares no table
        return _describe_lengths(dataset)
    except DataprepError:  # the table is not planned yet
        return Distributions()
    try:
        if _count_table_bytes(dataset) > MAX_BYTES:
            return Distributions(command=f"dataprep documents {dataset.name} --plot COLUMN")
        histograms = [_draw_column(table.histogram(column)) for column in table.plotted_columns]
        by_source, rules = _describe_drops(table)
        return Distributions(
            histograms=tuple(histograms),
            languages=_count_languages(table),
            by_source=by_source,
            rules=rules,
        )
    except DataprepError:  # a shard has no table yet
        return Distributions()


def _describe_lengths(dataset: StoredDataset) -> Distributions:
    """Return the lengths of the documents or conversations in tokens."""
    with suppress(DataprepError):  # an artifact is missing
        lengths = dataset.component.read_lengths(dataset.store, MAX_BYTES)
        if lengths is not None and len(lengths):
            values = np.sort(lengths).astype(np.float64)
            histogram = ColumnHistogram(column="tokens", values=values, missing=0, rules=())
            return Distributions(histograms=(_draw_column(histogram),))
    return Distributions()


def _count_table_bytes(dataset: StoredDataset) -> int:
    specs = [spec for spec in dataset.specs if spec.name == _TABLE]
    receipts = [receipt for spec in specs for receipt in dataset.store.receipts(spec.artifacts(dataset.store))]
    return sum(receipt.total_bytes for receipt in receipts if receipt is not None)


def _draw_column(histogram: ColumnHistogram) -> Histogram:
    """Draw a histogram with bars of equal width, because its bins may grow by powers of ten."""
    counts, limits = list(histogram.counts), histogram.limits.tolist() or [0.0, 0.0]
    if len(histogram.values):
        limits[-1] = float(histogram.values[-1])
    positions = [float(position) for position in range(len(limits))]
    thresholds = {
        f"{plotted.rule} ({format_number(threshold)})": float(np.interp(threshold, limits, positions))
        for plotted in histogram.rules
        for threshold in dict.fromkeys(plotted.thresholds)
    }
    missing = f", {histogram.missing:,} without a value" if histogram.missing else ""
    chart = draw_histogram(
        f"{histogram.column} of {count_of(histogram.documents, 'document')}{missing}",
        positions,
        counts,
        thresholds=thresholds,
        value_name=histogram.column,
        format_value=lambda position: format_number(float(np.interp(position, positions, limits))),
    )
    rules = [f"{plotted.describe_drops(histogram.documents)}: {plotted.drops}" for plotted in histogram.rules]
    return Histogram(chart, tuple(rules), tuple(histogram.describe_quantiles()))


def _count_languages(table: DocumentTable) -> Chart | None:
    """Draw the number of kept documents in each language; None if the table has no languages."""
    if _LANGUAGE not in table.columns:
        return None
    counts: Counter[str] = Counter()
    for piece in table.rows(kept=True, columns=[_LANGUAGE]).tables():
        counts += count_values(piece[_LANGUAGE])
    bars = dict(counts.most_common(_MAX_LANGUAGES))
    if remaining_count := counts.total() - sum(bars.values()):
        bars[f"{len(counts) - len(bars)} others"] = remaining_count
    if not bars:
        return None
    return draw_bars("kept documents by language", bars, label_name="language", value_name="documents")


def _describe_drops(table: DocumentTable) -> tuple[Rows | None, dict[str, str]]:
    """Return the documents of each source with those that each rule drops, and the rules' expressions."""
    drops = table.drops()
    if drops is None:
        return None, {}
    header = ("source", "documents", *(rule.rule for rule in drops.rules))
    sources = sorted(drops.sources.items(), key=lambda item: -item[1])
    rows = [
        (source, documents, *(rule.by_source.get(source, 0) for rule in drops.rules))
        for source, documents in sources[:_MAX_SOURCES]
    ]
    rows.append(("all sources", drops.documents, *(rule.documents for rule in drops.rules)))
    return (header, tuple(rows)), {rule.rule: rule.drops for rule in drops.rules}
