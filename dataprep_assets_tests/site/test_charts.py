"""Charts are elements with classes: no script, no inline style, and the same bytes on every day."""

import re
import xml.etree.ElementTree as ElementTree
from datetime import date

import pytest

from dataprep_assets.site.charts import Chart, draw_bars, draw_histogram, draw_lines, draw_sparkline

HOSTILE = "<script>alert(1)</script>\" onload='x'"
CHARTS = {
    "lines": lambda: draw_lines(HOSTILE, ["1", "2", HOSTILE], {HOSTILE: [1, None, 3], "b": [2, 3, 4]}),
    "bars": lambda: draw_bars(HOSTILE, {HOSTILE: 3, "b": 4}, value_name=HOSTILE),
    "histogram": lambda: draw_histogram(HOSTILE, [0, 10, 20], [5, 7], thresholds={HOSTILE: 12}),
}


def draw(kind: str) -> Chart:
    return CHARTS[kind]()


@pytest.mark.parametrize("kind", CHARTS)
def test_a_chart_has_no_script_and_no_inline_style(kind: str) -> None:
    tree = ElementTree.fromstring(draw(kind).svg)
    names = {element.tag.rpartition("}")[2] for element in tree.iter()}
    assert names <= {"svg", "g", "rect", "path", "text", "title", "circle", "line"}
    attributes = {name for element in tree.iter() for name in element.attrib}
    assert not [name for name in attributes if name.startswith("on") or name in ("style", "id", "href")]
    assert tree.get("aria-label") == HOSTILE
    assert HOSTILE in {element.text for element in tree.iter()}


@pytest.mark.parametrize("kind", CHARTS)
def test_equal_numbers_give_equal_bytes(kind: str) -> None:
    assert draw(kind) == draw(kind)
    assert "<!--" not in draw(kind).svg
    assert f"{date.today():%Y}" not in draw(kind).svg


def test_a_chart_has_its_numbers_as_rows() -> None:
    lines = draw_lines("tokens", ["May", "June"], {"a": [1, None], "b": [3, 4]}, label_name="month")
    assert (lines.header, lines.rows) == (("month", "a", "b"), (("May", 1, 3), ("June", None, 4)))
    bars = draw_bars("rules", {"short": 3, "long": 4}, label_name="rule", value_name="rows")
    assert (bars.header, bars.rows) == (("rule", "rows"), (("short", 3), ("long", 4)))
    histogram = draw_histogram("lengths", [0, 10, 20], [5, 7], value_name="length")
    assert histogram.header == ("length from", "to", "documents")
    assert histogram.rows == (("0", "10", 5), ("10", "20", 7))


@pytest.mark.parametrize("values", [[], [None], [3], [5, 5, 5]])
def test_few_or_equal_values_can_be_drawn(values: list[int | None]) -> None:
    draw_sparkline("x", values)
    draw_lines("x", [str(at) for at in range(len(values))], {"a": values})
    draw_bars("x", {str(at): value or 0 for at, value in enumerate(values)})


def test_the_newest_of_equal_labels_is_shown() -> None:
    labels = ["2026-11-29", *["2026-11-30"] * 9]
    svg = ElementTree.fromstring(draw_lines("tokens", labels, {"a": list(range(100, 110))}).svg)
    texts = [element.text for element in svg.iter() if element.tag.endswith("text")]
    shown = [text for text in texts if text in labels]
    assert 0 < len(shown) <= 5
    assert shown[-1] == labels[-1]
    assert "0" in texts, "the axis begins at zero"


def test_a_gap_interrupts_a_line() -> None:
    assert draw_sparkline("x", [1, 2, None, 4, 5]).count("M") == 2


def test_a_long_line_keeps_its_peaks() -> None:
    values = [100] * 400
    values[123], values[300] = 900, 0
    points = re.findall(r"[ML](\d+) (\d+)", draw_sparkline("x", values))
    heights = [int(height) for _, height in points]
    assert len(points) <= 120
    assert (min(heights), max(heights)) == (1, 41)
