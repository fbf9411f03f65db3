"""Convert a packing, or some of its bins, to a smaller packing or to lists."""

from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

from dataprep_assets.packing.bins import Bins, Segments

Content = TypeVar("Content", Bins, Segments)


def to_lists(bins: Bins) -> list[list[int]]:
    """Return the items of each bin."""
    return [bins.items[start:stop].tolist() for start, stop in pairwise(bins.offsets)]


def select_bins(content: Content, start: int, stop: int) -> Content:
    """Return the bins `start` to `stop` (exclusive)."""
    offsets = content.offsets[start : stop + 1]
    inside = slice(offsets[0], offsets[-1])
    if isinstance(content, Bins):
        return replace(content, items=content.items[inside], offsets=offsets - offsets[0])
    return replace(
        content,
        items=content.items[inside],
        starts=content.starts[inside],
        stops=content.stops[inside],
        offsets=offsets - offsets[0],
    )
