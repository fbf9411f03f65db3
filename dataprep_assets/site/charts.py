"""Charts as SVG, by pygal: pure Python, no script, and no file but the page itself.

Altair with vl-convert and Plotly draw with JavaScript, which is megabytes per page or a browser engine per build. Of
pygal's output, its inline style, its inline script and its comment with today's date are removed: `site.css` styles the
classes of the elements in light and dark, and equal facts give equal bytes.

Each chart also has its numbers as rows, which pages show as a table below the chart.

Entry points: `draw_lines`, `draw_bars`, `draw_bar_groups`, `draw_histogram`.
"""

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pygal
from markupsafe import Markup
from pygal import etree as pygal_etree

from dataprep_assets.stores.files import digest_value

pygal_etree.etree.to_etree()  # the standard library's trees, because lxml may be missing, and writes other bytes

Number = int | float
_WIDTH, _HEIGHT = 420, 200
_SPARK_WIDTH, _SPARK_HEIGHT, _SPARK_INTERVALS = 200, 40, 60
_BAR_HEIGHT = 26
"""Height of a bar with its gap, in units of the drawing."""
_BAR_OPTIONS = {"print_values": True, "print_values_position": "top", "show_x_labels": False, "margin_right": 70}
"""Options of horizontal bars, with room for the value to the right of the longest one."""
_LABELS_WIDTH, _CHARACTER_WIDTH = 330, 8
"""Width of the labels of a horizontal axis together, and of a character with its share of the gap."""


@dataclass(frozen=True)
class Chart:
    """A chart with the numbers that it shows.

    Attributes:
        title: Its title, also for people who cannot see it.
        svg: The drawing.
        header: Header of the table of the same numbers.
        rows: Its rows, with a label first.
    """

    title: str
    svg: Markup
    header: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def draw_lines(
    title: str,
    labels: Sequence[str],
    series: Mapping[str, Sequence[Number | None]],
    *,
    height: int = _HEIGHT,
    label_name: str = "build",
    format_value: Callable[[Number], str] | None = None,
) -> Chart:
    """Draw a line per series over the same labels, from zero; None leaves a gap."""
    longest = max(map(len, labels), default=0)
    margin = 3 * longest + 8  # half of the last label, which is centered at the right edge
    options = _choose_options(height, len(series), format_value) | {"margin_right": margin}
    chart = pygal.Line(**options, show_dots=len(labels) <= 60)
    chart.allow_interruptions, chart.include_x_axis = True, True
    # Label positions rather than texts, because several builds may have the same label. The last one is labeled.
    step = max(1, -(-len(labels) * _CHARACTER_WIDTH * longest // _LABELS_WIDTH))
    chart.x_labels = [label if (len(labels) - 1 - index) % step == 0 else "" for index, label in enumerate(labels)]
    for name, values in series.items():
        chart.add(name, list(values))
    rows = zip(labels, *series.values(), strict=True)
    return Chart(title, _render(chart, title), (label_name, *series), tuple(tuple(row) for row in rows))


def draw_sparkline(title: str, values: Sequence[Number | None]) -> Markup:
    """Draw one line without axes, for a cell of a table, from the smallest to the largest value.

    A page has hundreds of them, so they are drawn here, because pygal would take seconds for axes that are not shown.
    """
    numbers = [value for value in values if value is not None]
    low, span = min(numbers, default=0), (max(numbers, default=0) - min(numbers, default=0)) or 1
    step = _SPARK_WIDTH / max(1, len(values) - 1)
    commands, is_drawing = [], False
    for index in _choose_points(values):
        value = values[index]
        if value is not None:
            height = _SPARK_HEIGHT * (1 - (value - low) / span)
            commands.append(f"{'L' if is_drawing else 'M'}{index * step:.0f} {height + 1:.0f}")
        is_drawing = value is not None
    box = f"-1 0 {_SPARK_WIDTH + 2} {_SPARK_HEIGHT + 2}"
    return Markup(
        '<svg class="spark" role="img" aria-label="{}" viewBox="{}" preserveAspectRatio="none"><path d="{}"/></svg>'
    ).format(title, box, " ".join(commands))


def _choose_points(values: Sequence[Number | None]) -> Iterator[int]:
    """Yield the positions to draw: of each short interval of a long series, the smallest and the largest value."""
    size = -(-len(values) // _SPARK_INTERVALS)
    if size <= 2:
        yield from range(len(values))
        return
    for start in range(0, len(values), size):
        interval = range(start, min(start + size, len(values)))
        points = [(value, index) for index in interval if (value := values[index]) is not None]
        # An interval without a value is drawn as a gap.
        yield from sorted({min(points)[1], max(points)[1]}) if points else interval[:1]


def draw_bars(
    title: str,
    values: Mapping[str, Number],
    *,
    label_name: str = "",
    value_name: str = "",
    format_value: Callable[[Number], str] | None = None,
) -> Chart:
    """Draw horizontal bars, the first value on top."""
    chart = pygal.HorizontalBar(
        **_choose_options(60 + _BAR_HEIGHT * max(1, len(values)), 1, format_value) | _BAR_OPTIONS,
    )
    # Reverse the bars, because pygal draws the first one at the bottom.
    upwards = list(values.items())[::-1]
    chart.x_labels = [label for label, _ in upwards]
    chart.add(value_name, [value for _, value in upwards])
    return Chart(title, _render(chart, title), (label_name, value_name), tuple(values.items()))


def draw_bar_groups(
    title: str,
    labels: Sequence[str],
    series: Mapping[str, Sequence[Number]],
    *,
    label_name: str = "",
    format_value: Callable[[Number], str] | None = None,
) -> Chart:
    """Draw a group of horizontal bars per label, with a bar per series; the first label is on top."""
    height = 80 + _BAR_HEIGHT * len(series) * max(1, len(labels))
    chart = pygal.HorizontalBar(
        **_choose_options(height, len(series), format_value) | _BAR_OPTIONS,
    )
    # Reverse the labels, because pygal draws the first one at the bottom.
    chart.x_labels = list(labels)[::-1]
    for name, values in series.items():
        chart.add(name, list(values)[::-1])
    rows = zip(labels, *series.values(), strict=True)
    return Chart(title, _render(chart, title), (label_name, *series), tuple(tuple(row) for row in rows))


def draw_histogram(
    title: str,
    edges: Sequence[Number],
    counts: Sequence[Number],
    *,
    thresholds: Mapping[str, Number] | None = None,
    value_name: str = "value",
    count_name: str = "documents",
    format_value: Callable[[Number], str] | None = None,
) -> Chart:
    """Draw a histogram.

    Args:
        title: Title of the chart.
        edges: The edges of the bins, one more than there are counts.
        counts: The count of each bin.
        thresholds: Name → position of vertical lines.
        value_name: Name of the horizontal axis.
        count_name: Plural noun for the counted things.
        format_value: Returns the label of a position.
    """
    chart = pygal.Histogram(**_choose_options(_HEIGHT, 1 + len(thresholds or {}), None))
    if format_value is not None:
        chart.x_value_formatter = format_value
    bins = list(zip(edges, edges[1:], counts, strict=False))
    chart.add(count_name, [(count, low, high) for low, high, count in bins])
    top, width = max(counts, default=1) or 1, (edges[-1] - edges[0]) / 300
    for name, position in (thresholds or {}).items():
        chart.add(name, [(top, position - width / 2, position + width / 2)])
    rows = tuple(
        (_format_edge(low, format_value), _format_edge(high, format_value), count) for low, high, count in bins
    )
    return Chart(title, _render(chart, title), (f"{value_name} from", "to", count_name), rows)


def _format_edge(value: Number, format_value: Callable[[Number], str] | None) -> str:
    return f"{value:,}" if format_value is None else format_value(value)


def _choose_options(height: int, series: int, format_value: Callable[[Number], str] | None) -> dict[str, Any]:
    return {
        "js": (),
        "width": _WIDTH,
        "height": height,
        "margin": 8,
        "margin_right": 30,  # half of the last label of a histogram
        "show_legend": series > 1,
        "legend_at_bottom": True,
        "max_scale": 8,
        "truncate_label": -1,
        "truncate_legend": -1,
        "value_formatter": format_value or (lambda value: f"{value:,.10g}"),
    }


def _render(chart: Any, title: str) -> Markup:
    """Return the drawing without pygal's style, script, comments and boxes for tooltips of scripts."""
    chart.uuid = digest_value(title)[:12]
    tree = chart.render_tree()
    tree.attrib |= {"role": "img", "aria-label": title, "class": "chart"}
    for parent in list(tree.iter()):
        parent.attrib.pop("id", None)  # two charts of a page would have the same ids
        for child in list(parent):
            name = child.tag if isinstance(child.tag, str) else "comment"
            classes = child.get("class", "").split()
            if name in ("defs", "comment") or "tooltip-overlay" in classes or (name, parent) == ("title", tree):
                parent.remove(child)
            elif name == "desc":
                # Browsers show a title at the pointer.
                if classes == ["value"]:
                    child.tag = "title"
                else:
                    parent.remove(child)
    return Markup(ElementTree.tostring(tree, encoding="unicode"))
