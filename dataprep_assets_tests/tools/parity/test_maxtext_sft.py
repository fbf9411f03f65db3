"""How the batches of MaxText are read, and the comparison with its package, where it is installed."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dataprep_assets_tests.tools.parity.maxtext_sft import name_kind, read_segments, split_rounds
from dataprep_assets_tests.tools.parity.sft_views import ROWS

PAD = 9
PACKED = {
    "inputs": [5, 1, 2, 6, 3, 0],
    "inputs_segmentation": [1, 1, 1, 2, 2, 0],
    "inputs_position": [0, 1, 2, 0, 1, 0],
    "targets": [1, 2, PAD, 3, PAD, 0],
    "targets_segmentation": [1, 1, 0, 2, 0, 0],
}


def read(**changes: list[int]) -> list[tuple[tuple[list[int], list[int]], bool]]:
    """Return the conversations of a batch with one row."""
    return list(read_segments({name: np.array([values]) for name, values in (PACKED | changes).items()}))


def test_each_conversation_of_a_batch_has_the_mask_of_its_own_tokens() -> None:
    assert read() == [(([5, 1, 2], [0, 1, 1]), True), (([6, 3], [0, 1]), True)]


@pytest.mark.parametrize(
    "changes",
    [
        {"targets_segmentation": [1, 1, 1, 2, 0, 0], "targets": [1, 2, 6, 3, PAD, 0]},
        {"inputs_position": [0, 1, 2, 3, 4, 0]},
        {"targets": [1, 2, PAD, 4, PAD, 0]},
    ],
    ids=["target of the next conversation", "positions that go on", "other target"],
)
def test_a_conversation_with_other_targets_or_positions_is_found(changes: dict[str, list[int]]) -> None:
    assert not all(is_own for _, is_own in read(**changes))


def test_padding_with_the_pad_token_as_its_segment_is_no_conversation() -> None:
    changes = {"inputs": [5, 1, 2, PAD, PAD, PAD], "inputs_segmentation": [1, 1, 1, PAD, PAD, PAD]}
    assert read(**changes, targets_segmentation=[1, 1, 0, 0, 0, 0]) == [(([5, 1, 2], [0, 1, 1]), True)]


def test_the_conversations_have_all_kinds_and_rounds_have_one_answer() -> None:
    kinds = Counter(map(name_kind, ROWS))
    assert kinds == {
        "calls and results": 40,
        "several questions": 80,
        "system, several questions": 40,
        "one question": 27,
        "system, one question": 13,
    }
    for row in ROWS:
        rounds = split_rounds(row["messages"])
        assert [message for one_round in rounds for message in one_round] == row["messages"]
        assert all([message["role"] for message in one_round].count("assistant") == 1 for one_round in rounds)


@pytest.mark.slow
def test_each_difference_from_the_installed_package_has_a_cause() -> None:
    package = pytest.importorskip("maxtext", reason="MaxText is not installed; it requires Python 3.12")
    folder = Path(package.__file__ or "").parents[1]
    command = [sys.executable, "-m", "dataprep_assets_tests.tools.parity", "--maxtext", str(folder)]
    done = subprocess.run([*command, "--only", "maxtext_sft"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "packing=true | 400 | 400 | 0 |" in done.stdout
