"""Histograms of columns: bins that contain every value once, exact thresholds, and lines that fit the terminal."""

import numpy as np
import pytest

from dataprep_assets.engine.trace.histogram import ColumnHistogram, PlottedRule, ValueCounts
from dataprep_assets_tests.messages import assert_names


def make_histogram(values: list[float], *rules: PlottedRule, missing: int = 0) -> ColumnHistogram:
    return ColumnHistogram(column="words", values=np.sort(np.array(values, np.float64)), missing=missing, rules=rules)


def make_rule(*thresholds: float, documents: int = 3, dropped_earlier: int = 0) -> PlottedRule:
    return PlottedRule(
        rule="short", drops="words < 50", thresholds=thresholds, documents=documents, dropped_earlier=dropped_earlier
    )


RANDOM = np.random.default_rng(3)
SERIES = {
    "skewed": RANDOM.lognormal(4.8, 1.0, 5_000).round().tolist(),
    "normal": RANDOM.normal(-7.0, 2.0, 5_000).tolist(),
    "shares": RANDOM.beta(1, 30, 2_000).tolist() + [0.0] * 500 + [1.0],
    "few": [0.0, 1.0, 1.0, 2.0, 10.0],
    "constant": [0.3] * 7,
    "one": [250_000.0],
    "zeros": [0.0] * 4,
    "extreme": [1e-320, 1.0, 1e300, -1e300],
    "large": [1.0, 2.0, 2.0, 9e18],
}


@pytest.mark.parametrize("name", SERIES)
def test_every_value_is_in_the_bin_that_the_limits_give(name: str) -> None:
    values = np.array(SERIES[name])
    plotted = make_histogram(SERIES[name]).to_json()
    bins = plotted["bins"]
    assert 1 <= len(bins) <= 24
    assert sum(one["documents"] for one in bins) == len(values)
    assert [one["to"] for one in bins[:-1]] == [one["from"] for one in bins[1:]]
    assert (bins[0]["from"] <= values.min(), bins[-1]["to"]) == (True, values.max())
    for number, one in enumerate(bins):
        is_last = number == len(bins) - 1
        inside = (values >= one["from"]) & ((values <= one["to"]) if is_last else (values < one["to"]))
        assert one["documents"] == np.count_nonzero(inside)


def test_bins_have_round_limits_and_increasing_widths_for_skewed_values() -> None:
    starts = [one["from"] for one in make_histogram(SERIES["skewed"]).to_json()["bins"]]
    assert {30, 50, 70, 100, 150, 200} <= {*starts}
    starts = [one["from"] for one in make_histogram([0.0, 1.0, 2.0, 2.0, 3.0]).to_json()["bins"]]
    assert starts == [0, 1, 2, 3], "integers have bins of at least 1, and the largest has its own bin"
    starts = [one["from"] for one in make_histogram([1.0, 1.0, 2.0, 2.0, 40.0]).to_json()["bins"]]
    assert starts == [1, 2, 3, 5, 7, 10, 15, 20, 30]


def test_quantiles_are_values_of_the_column() -> None:
    quantiles = make_histogram([float(number) for number in range(1, 101)]).to_json()["quantiles"]
    assert quantiles == {
        **{"0": 1, "0.01": 1, "0.05": 5, "0.25": 25, "0.5": 50},
        **{"0.75": 75, "0.95": 95, "0.99": 99, "1": 100},
    }


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_bars_and_thresholds_fill_the_width(width: int) -> None:
    plotted = make_histogram(SERIES["skewed"], make_rule(50, 1000))
    *lines, quantiles = plotted.lines(width, bar="#", line="-")
    assert {len(line) for line in lines if line.endswith("-")} == {width}
    assert max(len(line) for line in lines if line.endswith("#")) == width
    assert quantiles.startswith("quantiles: minimum ")


def test_a_threshold_is_before_the_first_bin_that_does_not_start_below_it() -> None:
    plotted = make_histogram([0.0, 1.0, 2.0, 3.0], make_rule(1, 1.5, 99, documents=2), missing=1)
    assert list(plotted.lines(40, bar="#", line="-")) == [
        "words of 5 documents, 1 without a value",
        "from  documents",
        "   0          1  #######################",
        "   1  short drops 2 documents (40.0%) --",
        "   1          1  #######################",
        " 1.5  short drops 2 documents (40.0%) --",
        "   2          1  #######################",
        "   3          1  #######################",
        "  99  short drops 2 documents (40.0%) --",
        "quantiles: minimum 0, 1% 0, 5% 0, 25% 0, median 1, 75% 2, 95% 3, 99% 3, maximum 3",
    ]


def test_a_rule_without_a_number_and_matches_of_earlier_rules_are_below_the_bars() -> None:
    lines = list(make_histogram([1.0, 2.0], make_rule(dropped_earlier=1, documents=1)).lines(60, bar="#", line="-"))
    assert lines[-3:-1] == [
        "short drops 1 document (50.0%): words < 50",
        "short: matches 1 more document, dropped by an earlier rule",
    ]


def test_a_column_without_values_has_no_bins() -> None:
    plotted = make_histogram([], make_rule(5, documents=0), missing=2)
    assert list(plotted.lines(60, bar="#", line="-")) == ["words of 2 documents, 2 without a value"]
    assert plotted.to_json()["bins"] == []
    assert plotted.to_json()["quantiles"] == {}
    assert plotted.to_json()["rules"][0]["share"] == 0
    assert make_histogram([], make_rule(5, documents=0)).to_json()["rules"][0]["share"] is None


def test_values_are_counted_with_the_most_frequent_first() -> None:
    counts = {"en": 400, "d\x1be" + "e" * 90: 20, **{f"v{number:02}": 1 for number in range(23)}}
    plotted = ValueCounts(column="language", counts=counts, missing=7, rules=[make_rule(documents=20)])
    value = plotted.to_json()
    assert (value["documents"], value["missing"], value["other_values"]) == (450, 7, 5)
    assert value["values"][0] == {"value": "en", "documents": 400}
    assert len(value["values"]) == 20
    assert value["rules"][0]["share"] == 20 / 450
    first, head, *bars, rest, line, rule = plotted.lines(60, bar="#", line="-")
    assert_names(first, "language", "450 documents", "7 without a value")
    assert head.split() == ["value", "documents"]
    assert [bar.split()[0] for bar in bars[:2]] == ["en", "d\\x1b" + "e" * 14 + "…"]
    assert [bar.count("#") for bar in bars[:3]] == [27, 1, 1]
    assert_names(rest, "5 more values", "5 documents")
    assert line == "-" * 60
    assert_names(rule, "20 documents")
    assert all(len(one) <= 60 for one in [first, head, *bars, rest])


def test_values_of_no_documents_and_booleans_are_counted() -> None:
    empty = ValueCounts(column="language", counts={}, missing=2, rules=[])
    assert len(list(empty.lines(60, bar="#", line="-"))) == 1
    assert empty.to_json()["values"] == []
    flags = ValueCounts(column="has_tools", counts={False: 3, True: 1}, missing=0, rules=[])
    assert [line.split()[0] for line in flags.lines(60, bar="#", line="-")][2:] == ["false", "true"]
