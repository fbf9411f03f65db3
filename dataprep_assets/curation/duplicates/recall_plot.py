"""Picture of the S-curve of near-duplicates: the probability that two documents share a band, by their similarity.

The line is the prediction of the bands, and the points are the results for planted pairs. Documents at or above the
threshold are removed as duplicates. The picture contains only numbers, no data.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.duplicates.banding import Banding
from dataprep_assets.engine.artifact.metadata_values import Markdown, render_picture

_LEFT, _TOP, _WIDTH, _HEIGHT, _RIGHT, _BELOW = 56, 20, 420, 220, 20, 44
"""Pixels of the margins and of the plot area."""
_BINS = 20
"""Maximum number of points: similarities are grouped by twentieths."""


@dataclass(frozen=True)
class RecallPoint:
    """A group of pairs of about the same similarity: mean similarity, share with a common band, number of pairs."""

    similarity: float
    share: float
    pairs: int


def group_points(similarities: NDArray[np.float64], shared: NDArray[np.bool_]) -> list[RecallPoint]:
    """Group planted pairs into points.

    Args:
        similarities: Similarity of the two texts of each pair: ``(pairs,)``.
        shared: Whether they share a band: ``(pairs,)``.
    """
    # Clip the bin numbers, because a similarity of exactly 1 would fall after the last bin.
    bins = np.minimum((similarities * _BINS).astype(np.int64), _BINS - 1)
    masks = [bins == one for one in np.unique(bins).tolist()]
    return [RecallPoint(float(similarities[one].mean()), float(shared[one].mean()), int(one.sum())) for one in masks]


def draw_recall(banding: Banding, threshold: float, points: Sequence[RecallPoint] = ()) -> Markdown:
    """Draw the curve, the threshold and the points; return the picture as Markdown.

    Args:
        banding: The division of signatures into bands.
        threshold: The minimum similarity of duplicates.
        points: Results for planted pairs; empty if none were planted.
    """
    width, height = _LEFT + _WIDTH + _RIGHT, _TOP + _HEIGHT + _BELOW
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="monospace" font-size="12">',
        # Draw a white background, because the dark text would be unreadable on the background of the UI's dark theme.
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *_draw_axes(),
        f'<line x1="{_scale_x(threshold):.1f}" x2="{_scale_x(threshold):.1f}" y1="{_TOP}" y2="{_TOP + _HEIGHT}" '
        'stroke="#b0552f" '
        'stroke-dasharray="4 3"/>',
        _draw_text(_scale_x(threshold) - 4, _TOP + _HEIGHT - 6, f"threshold {threshold:g}", anchor="end"),
        _draw_predicted_curve(banding),
        *_draw_dots(points),
        "</svg>",
    ]
    suffix = ", and the share of planted pairs that was found" if points else ""
    return render_picture(f"the chance that the bands find a pair, by its similarity{suffix}", "\n".join(lines))


def _scale_x(similarity: float) -> float:
    return _LEFT + similarity * _WIDTH


def _scale_y(share: float) -> float:
    return _TOP + (1 - share) * _HEIGHT


def _draw_axes() -> Iterator[str]:
    yield f'<rect x="{_LEFT}" y="{_TOP}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#8a8a8a"/>'
    for tenth in range(0, 11, 2):
        yield _draw_text(_scale_x(tenth / 10), _TOP + _HEIGHT + 16, f"{tenth / 10:g}", anchor="middle")
        yield _draw_text(_LEFT - 6, _scale_y(tenth / 10) + 4, f"{10 * tenth}%", anchor="end")
    yield _draw_text(_LEFT + _WIDTH / 2, _TOP + _HEIGHT + 36, "Jaccard similarity of shingles", anchor="middle")


def _draw_predicted_curve(banding: Banding) -> str:
    similarities = np.linspace(0, 1, 101)
    coordinates = " ".join(
        f"{_scale_x(x):.1f},{_scale_y(y):.1f}"
        for x, y in zip(similarities.tolist(), banding.match_probability(similarities).tolist(), strict=True)
    )
    return f'<polyline points="{coordinates}" fill="none" stroke="#9db4d6" stroke-width="2"/>'


def _draw_dots(points: Sequence[RecallPoint]) -> Iterator[str]:
    max_pairs = max((point.pairs for point in points), default=1)
    for point in points:
        radius = 3 + 4 * (point.pairs / max_pairs) ** 0.5
        center = f'cx="{_scale_x(point.similarity):.1f}" cy="{_scale_y(point.share):.1f}"'
        yield f'<circle {center} r="{radius:.1f}" fill="#1f4e9c"/>'


def _draw_text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="#1a1a1a">{text}</text>'
