"""Lengths of chosen and rejected answers by dataset, and the check that neither side is nearly always longer.

If one side is nearly always longer, a model may learn to prefer the length and not the better answer.

Entry points: `build_length_rows`, `find_length_bias`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.checks.check import Finding, build_verdict
from dataprep_assets.errors import count_of
from dataprep_assets.formats.conversations.preference_rows import read_lengths
from dataprep_assets.table import format_share

_QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "max": 1.0}
_MIN_PAIRS = 20
"""Minimum number of pairs in a dataset and split for a judgment of their lengths."""


def build_length_rows(files: Mapping[tuple[str, str], Sequence[Path]]) -> list[dict[str, Any]]:
    """Return a row per split and dataset: quantiles of its answers' tokens, and the share of pairs with a longer side.

    `files` maps each split and dataset to its files. Labeled answers are in the quantiles, but not in the shares.
    """
    return [
        _build_row(split, name, np.concatenate([np.zeros((0, 3), np.int64), *map(read_lengths, paths)]))
        for (split, name), paths in files.items()
    ]


def _build_row(split: str, name: str, lengths: NDArray[np.int64]) -> dict[str, Any]:
    row: dict[str, Any] = {"split": split, "name": name}
    for side, column in (("chosen", 1), ("rejected", 2)):
        tokens = lengths[lengths[:, column] >= 0, column]
        # The quantile method `lower` returns the length of an existing answer, because an interpolated quantile may not
        # be a whole number of tokens.
        row |= {
            f"{side}_{quantile}": int(np.quantile(tokens, share, method="lower")) if len(tokens) else 0
            for quantile, share in _QUANTILES.items()
        }
    pairs = lengths[(lengths[:, 1:] >= 0).all(axis=1)]
    row["pairs"] = len(pairs)
    for name_of_share, is_longer in (
        ("chosen_longer", pairs[:, 1] > pairs[:, 2]),
        ("rejected_longer", pairs[:, 1] < pairs[:, 2]),
    ):
        row[name_of_share] = round(float(is_longer.mean()), 4) if len(pairs) else 0.0
    return row


def find_length_bias(rows: Sequence[Mapping[str, Any]], limit: float) -> Finding:
    """Return the finding for the rows of `build_length_rows`, a warning if one side is longer in too many pairs.

    `limit` is the maximum share of pairs in which the same side is the longer one.

    Datasets with fewer than 20 pairs in a split are in the table, but are not judged.
    """
    defects = [
        f"{row['split']}: {row['name']}: the {side} answer is longer in {format_share(row[f'{side}_longer'])} of "
        f"{count_of(row['pairs'], 'pair')}"
        for row in rows
        for side in ("chosen", "rejected")
        if row["pairs"] >= _MIN_PAIRS and row[f"{side}_longer"] > limit
    ]
    return build_verdict(
        defects,
        f"Neither answer is the longer one in more than {format_share(limit)} of a dataset's pairs.",
        "Add pairs with short chosen answers, train with a length penalty, or raise `pairs.max_chosen_longer`",
        facts={"pairs": sum(row["pairs"] for row in rows)},
        table=[dict(row) for row in rows],
        warning=True,
    )
