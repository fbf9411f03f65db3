"""Histogram of a numeric column of the document table, with quantiles and the thresholds of filter rules.

Other columns, such as texts, have the counts of their most frequent values instead.

Values that are mostly small, such as lengths of texts, get bins of increasing width. The first and the last bin also
contain the outliers, so the counts of the bins add up to the number of values.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import count_of
from dataprep_assets.table import format_share

_QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
_OUTLIERS = 0.001
"""Share of the values at each end that do not determine the range of the bins."""
_MAX_BINS = 20
_SKEWED = 10.0
"""Ratio of the maximum to the median above which the bins have increasing widths."""
_SMALLEST = 1e-12
"""Smallest limit of bins of increasing width, as a share of the largest value."""
_STEPS = (1.0, 2.0, 5.0, 10.0)
"""Widths of bins of equal width, as multiples of a power of ten."""
_MULTIPLES = ((1.0, 1.5, 2.0, 3.0, 5.0, 7.0), (1.0, 2.0, 5.0), (1.0,))
"""Limits of bins of increasing width, as multiples of each power of ten, from fine to coarse."""


@dataclass(frozen=True, kw_only=True)
class PlottedRule:
    """A filter rule over the plotted column.

    Attributes:
        rule: The rule's name.
        drops: The expression that is true for a dropped document.
        thresholds: The numbers with which the rule compares the column; empty for a rule without such a number.
        documents: Number of plotted documents that the rule drops.
        dropped_earlier: Number of other plotted documents that match, but that an earlier rule drops.
    """

    rule: str
    drops: str
    thresholds: Sequence[float]
    documents: int
    dropped_earlier: int

    def to_json(self, documents: int) -> dict[str, Any]:
        """Return the JSON object; `documents` is the number of plotted documents."""
        share = self.documents / documents if documents else None
        return {**vars(self), "thresholds": list(self.thresholds), "share": share}

    def describe_drops(self, documents: int) -> str:
        """Return the rule with the number of documents that it drops, and their share of the plotted documents."""
        return f"{self.rule} drops {count_of(self.documents, 'document')} ({format_share(self.documents / documents)})"


@dataclass(frozen=True, kw_only=True)
class ColumnHistogram:
    """Values of a numeric column and the filter rules over this column.

    Attributes:
        column: The column.
        values: The finite values, in ascending order: shape `(documents,)`.
        missing: Number of documents without a finite value.
        rules: The current rules over the column, in their order.
    """

    column: str
    values: NDArray[np.float64] = field(repr=False)
    missing: int
    rules: Sequence[PlottedRule]

    @property
    def documents(self) -> int:
        """Number of plotted documents, including those without a value."""
        return len(self.values) + self.missing

    @cached_property
    def quantiles(self) -> Mapping[float, float]:
        """Share → the smallest value that at least this share of the values does not exceed; empty without values."""
        if not len(self.values):
            return {}
        values = np.quantile(self.values, _QUANTILES, method="inverted_cdf")
        return dict(zip(_QUANTILES, values.tolist(), strict=True))

    @cached_property
    def limits(self) -> NDArray[np.float64]:
        """Limits of the bins: shape `(bins + 1,)`. A bin contains its lower limit, and the last bin also its upper.

        The first bin starts at the smallest value if this value is below the chosen limits.
        """
        limits = _choose_limits(self.values)
        limits[:1] = np.minimum(limits[:1], self.values[:1])
        return limits

    @cached_property
    def counts(self) -> Sequence[int]:
        """Number of values in each bin."""
        if not len(self.values):
            return []
        starts = np.searchsorted(self.values, self.limits[:-1])
        counts: list[int] = np.diff(starts, append=len(self.values)).tolist()
        return counts

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object.

        Keys:
            column: The column.
            documents: Number of plotted documents.
            missing: Number of these documents without a value.
            bins: The bins, in ascending order; empty without values.
            bins[].from: Lower limit of the bin, or the smallest value.
            bins[].to: Upper limit of the bin, which belongs to the next bin; in the last bin, the largest value.
            bins[].documents: Number of documents in the bin.
            quantiles: Share, such as `0.25` → the value that this share of the values does not exceed.
            rules: The filter rules over the column.
            rules[].rule: The rule.
            rules[].drops: The expression that is true for a dropped document.
            rules[].thresholds: The numbers with which the rule compares the column.
            rules[].documents: Number of plotted documents that the rule drops.
            rules[].dropped_earlier: Number of other plotted documents that match, but that an earlier rule drops.
            rules[].share: Share of all plotted documents that the rule drops; null if no document is plotted.
        """
        limits = self.limits.tolist()
        if limits:
            limits[-1] = float(self.values[-1])
        return {
            "column": self.column,
            "documents": self.documents,
            "missing": self.missing,
            "bins": [
                {"from": start, "to": stop, "documents": count}
                for start, stop, count in zip(limits[:-1], limits[1:], self.counts, strict=True)
            ],
            "quantiles": {f"{share:g}": value for share, value in self.quantiles.items()},
            "rules": [rule.to_json(self.documents) for rule in self.rules],
        }

    def lines(self, width: int, *, bar: str, line: str) -> Iterator[str]:
        """Yield the histogram as bars, in `width` columns, with a line at each threshold; then the quantiles.

        Args:
            width: Number of columns.
            bar: The character for bars.
            line: The character for lines at thresholds.
        """
        yield f"{self.column} of {count_of(self.documents, 'document')}{_describe_missing(self.missing)}"
        if not len(self.values):
            return
        marks = [
            (threshold, plotted.describe_drops(self.documents))
            for plotted in self.rules
            for threshold in dict.fromkeys(plotted.thresholds)
        ]
        starts = self.limits[:-1].tolist()
        labels = {number: format_number(number) for number in (*starts, *(threshold for threshold, _ in marks))}
        label_width = max(map(len, ("from", *labels.values())))
        count_width = max(len("documents"), len(f"{max(self.counts):,}"))
        bar_width = max(1, width - label_width - count_width - 4)
        yield f"{'from':>{label_width}}  {'documents':>{count_width}}"
        # Sort by number, then by the second item, so that a threshold is drawn above the bin that starts at it.
        lines = [(number, 0, f"{labels[number]:>{label_width}}  {text} ".ljust(width, line)) for number, text in marks]
        for start, count in zip(starts, self.counts, strict=True):
            # Draw at least one character, so that a bin with few documents differs from an empty bin.
            length = max(1, round(bar_width * count / max(self.counts))) if count else 0
            lines.append((start, 1, f"{labels[start]:>{label_width}}  {count:>{count_width},}  {bar * length}"))
        for *_, text in sorted(lines):
            yield text.rstrip()
        for plotted in self.rules:
            if not plotted.thresholds:
                yield f"{plotted.describe_drops(self.documents)}: {plotted.drops}"
            if plotted.dropped_earlier:
                match_count = count_of(plotted.dropped_earlier, "more document")
                yield f"{plotted.rule}: matches {match_count}, dropped by an earlier rule"
        yield f"quantiles: {', '.join(f'{name} {value}' for name, value in self.describe_quantiles())}"

    def describe_quantiles(self) -> list[tuple[str, str]]:
        """Return the name and the value of each quantile, as text."""
        names = {0.0: "minimum", 0.5: "median", 1.0: "maximum"}
        return [(names.get(share, f"{share:.0%}"), format_number(value)) for share, value in self.quantiles.items()]


@dataclass(frozen=True, kw_only=True)
class ValueCounts:
    """Number of documents with each value of a column, and the filter rules over this column.

    Attributes:
        column: The column.
        counts: Value → number of its documents, the most frequent value first.
        missing: Number of documents without a value.
        rules: The current rules over the column, in their order.
    """

    column: str
    counts: Mapping[Any, int] = field(repr=False)
    missing: int
    rules: Sequence[PlottedRule]

    @property
    def documents(self) -> int:
        """Number of plotted documents, including those without a value."""
        return sum(self.counts.values()) + self.missing

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object.

        Keys:
            values: The most frequent values, at most 20; only for columns without numbers, instead of `bins`.
            values[].value: The value.
            values[].documents: Number of documents with the value.
            other_values: Number of further values; only for columns without numbers, instead of `quantiles`.
        """
        shown_values = list(self.counts.items())[:_MAX_BINS]
        return {
            "column": self.column,
            "documents": self.documents,
            "missing": self.missing,
            "values": [{"value": value, "documents": count} for value, count in shown_values],
            "other_values": len(self.counts) - len(shown_values),
            "rules": [rule.to_json(self.documents) for rule in self.rules],
        }

    def lines(self, width: int, *, bar: str, line: str) -> Iterator[str]:
        """Yield the counts of the most frequent values as bars, in `width` columns; then the rules below a line.

        Args:
            width: Number of columns.
            bar: The character for bars.
            line: The character for the line.
        """
        yield f"{self.column} of {count_of(self.documents, 'document')}{_describe_missing(self.missing)}"
        shown_values = list(self.counts.items())[:_MAX_BINS]
        if not shown_values:
            return
        labels = [_shorten_value(value, width // 3) for value, _ in shown_values]
        label_width = max(map(len, ("value", *labels)))
        most_count = shown_values[0][1]
        count_width = max(len("documents"), len(f"{most_count:,}"))
        bar_width = max(1, width - label_width - count_width - 4)
        yield f"{'value':<{label_width}}  {'documents':>{count_width}}"
        for label, (_, count) in zip(labels, shown_values, strict=True):
            length = max(1, round(bar_width * count / most_count))
            yield f"{label:<{label_width}}  {count:>{count_width},}  {bar * length}"
        if other_count := len(self.counts) - len(shown_values):
            documents = sum(list(self.counts.values())[_MAX_BINS:])
            yield f"and {count_of(other_count, 'more value')} with {count_of(documents, 'document')}"
        if self.rules:
            yield line * width
        for plotted in self.rules:
            yield f"{plotted.describe_drops(self.documents)}: {plotted.drops}"


def _describe_missing(count: int) -> str:
    return f", {count:,} without a value" if count else ""


def _shorten_value(value: Any, width: int) -> str:
    """Return a value as text of at most `width` columns, as rules write booleans."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    # Escape control characters, because they could change the terminal.
    text = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
    return text if len(text) <= width else f"{text[: max(1, width - 1)]}…"


def _choose_limits(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return round limits of about 20 bins or fewer, for ascending values; empty without values."""
    if not len(values):
        return np.zeros(0)
    positive, is_integer = values[values > 0], not np.any(values % 1)
    is_skewed = values[0] >= 0 and len(positive) and values[-1] >= _SKEWED * np.median(positive)
    low, high = np.quantile(positive if is_skewed else values, (_OUTLIERS, 1 - _OUTLIERS), method="inverted_cdf")
    if is_skewed:
        low = max(low, high * _SMALLEST)
        for multiples in _MULTIPLES:
            limits = _list_multiples(multiples, float(low), float(high))
            if len(limits) <= _MAX_BINS + 1:
                break
        return np.unique(np.ceil(limits)) if is_integer else limits
    step = _round_up(float(high) / _MAX_BINS - float(low) / _MAX_BINS)
    # A double is at most as precise as `spacing`.
    step = max(step, float(np.spacing(abs(high))), 1.0 if is_integer else 0.0)
    numbers = np.arange(math.floor(low / step), math.floor(high / step) + 2)
    return np.round(numbers * step, max(0, 1 - math.floor(math.log10(step))))


def _list_multiples(multiples: Sequence[float], low: float, high: float) -> NDArray[np.float64]:
    """Return the multiples of powers of ten, from the last one that is at most `low` to the first above `high`."""
    # Add a power at each end, because a logarithm may be rounded up or down to the next integer.
    powers = range(math.floor(math.log10(low)) - 1, math.floor(math.log10(high)) + 3)
    # Read the numbers as text, because the product 1.5 * 10**-3 would not be the number nearest to 0.0015.
    limits = np.array([float(f"{multiple}e{power}") for power in powers for multiple in multiples])
    return limits[np.searchsorted(limits, low, side="right") - 1 : np.searchsorted(limits, high, side="right") + 1]


def _round_up(width: float) -> float:
    """Return the smallest round width of bins that is at least `width`; 1 for a width of 0."""
    if width <= 0:
        return 1.0
    power = math.floor(math.log10(width))
    return next((float(f"{step}e{power}") for step in _STEPS if float(f"{step}e{power}") >= width), 10.0 ** (power + 1))


def format_number(value: float) -> str:
    """Return a value of a column as text, without needless digits."""
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e12 else f"{value:.4g}"
