"""Stock MaxText trains on every label except its pad id: the rules, on rows that can be verified by eye."""

import numpy as np
import pytest

from dataprep_assets.packing.stock_maxtext import Pipeline, StockRule

PAD, BOS = 9, 8


def make_rule(pipeline: Pipeline, pad: int | None = PAD, unk: int | None = None, bos: int | None = None) -> StockRule:
    return StockRule(pipeline=pipeline, row_length=5, pad_id=pad, unk_id=unk, bos_id=bos)


@pytest.mark.parametrize(
    ("pipeline", "row", "inputs", "targets", "trained"),
    [
        # tfds splits a row of L + 1 tokens into inputs without the last token and targets without the first. The other
        # pipelines have no target for the last position.
        ("tfds", [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5], [2, 3, 4, 5, 6], [1, 1, 1, 1, 1]),
        ("grain", [1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [2, 3, 4, 5, PAD], [1, 1, 1, 1, 0]),
        ("hf", [1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [2, 3, 4, 5, PAD], [1, 1, 1, 1, 0]),
        ("tfds", [1, 2, 3], [1, 2, PAD, PAD, PAD], [2, 3, PAD, PAD, PAD], [1, 1, 0, 0, 0]),
        ("grain", [1, 2, 3], [1, 2, 3, PAD, PAD], [2, 3, PAD, PAD, PAD], [1, 1, 0, 0, 0]),
        ("grain", [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5], [2, 3, 4, 5, PAD], [1, 1, 1, 1, 0]),
        ("tfds", [1], [PAD] * 5, [PAD] * 5, [0] * 5),
        ("tfds", [], [PAD] * 5, [PAD] * 5, [0] * 5),
        ("hf", [], [PAD] * 5, [PAD] * 5, [0] * 5),
    ],
)
def test_rows_are_shifted_truncated_and_padded_like_in_the_pipeline(
    pipeline: Pipeline, row: list[int], inputs: list[int], targets: list[int], trained: list[int]
) -> None:
    found = make_rule(pipeline).labels([np.array(row)])
    assert found.inputs.tolist() == [inputs]
    assert found.targets.tolist() == [targets]
    assert found.trained.astype(int).tolist() == [trained]


def test_stored_padding_is_trained_on_unless_the_pad_ids_are_equal() -> None:
    """Unpacked rows had this defect: a tokenizer with another pad token, or without one, does not recognize their
    padding.
    """
    stored = [np.array([1, 2, 3, 7, 7, 7])]
    assert make_rule("tfds", pad=7).labels(stored).trained.sum() == 2
    assert make_rule("tfds", pad=PAD).labels(stored).trained.sum() == 5
    assert make_rule("tfds", pad=None).labels(stored).trained.sum() == 5


@pytest.mark.parametrize(
    ("pipeline", "pad", "unk", "bos", "ignored"),
    [
        ("tfds", PAD, 1, BOS, {PAD}),
        ("tfds", None, 1, BOS, {1}),
        ("tfds", None, None, BOS, {-1}),
        ("grain", None, None, BOS, {0}),
        ("hf", PAD, 1, BOS, {PAD, BOS}),
        ("hf", None, None, None, {-1}),
    ],
)
def test_ids_that_are_not_labels_are_excluded(
    pipeline: Pipeline, pad: int | None, unk: int | None, bos: int | None, ignored: set[int]
) -> None:
    found = make_rule(pipeline, pad, unk, bos)
    assert found.ignored == ignored
    real = found.labels([np.array([0, 1, *sorted(ignored)])])
    assert set(real.targets[real.trained].tolist()).isdisjoint(ignored)
    assert real.masked.any()
