"""The eye test passes text, and finds holes, shifts, noise and other widths."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.stream.eye_test import looks_like_text
from dataprep_assets.stream.token_shard import ENDS, TOKENS
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.corpus.sample_shards import Sample, Shard, Special
from dataprep_assets_tests.pipelines.corpus.shard_checks import edit


def look(shard: Shard, sample: Sample, dtype: str = "uint16", **options: Any) -> Finding:
    return looks_like_text(shard.directory / TOKENS, shard.directory / ENDS, dtype, sample.bundle, seed=1, **options)


def test_windows_contain_text(shard: Shard, sample: Sample) -> None:
    found = look(shard, sample)
    assert found.passed
    assert len(found.table) == 6
    assert found.table[0]["offset"] == 0
    assert all(len(str(row["text"])) <= 200 for row in found.table)


def test_a_hole_between_the_windows_is_found(shard: Shard, sample: Sample) -> None:
    def hole(tokens: NDArray[Any]) -> None:
        tokens[9_001 : 9_001 + 600] = 0

    edit(shard.directory / TOKENS, "<u2", hole)
    found = look(shard, sample, windows=1)
    assert_names(found.summary, "id 0 occurs 600 times", 9001)
    assert found.warning


def test_a_run_of_one_id_in_one_window_is_a_warning(shard: Shard, sample: Sample) -> None:
    def run(tokens: NDArray[Any]) -> None:
        tokens[100:800] = 300

    edit(shard.directory / TOKENS, "<u2", run)
    found = look(shard, sample)
    assert_names(found.summary, "offset 0", "document 0", "700 times")
    assert found.warning


def test_another_dtype_fails_in_both_directions(sample: Sample, shard: Shard, special: Special) -> None:
    found = look(shard, sample, "uint32")
    assert not found.passed
    assert not found.warning, "no text has such ids"
    assert "outside the vocabulary (0 to 4095)" in found.summary
    tokens = np.fromfile(shard.directory / TOKENS, "<u2")
    tokens.astype("<u4").tofile(shard.directory / TOKENS)
    found = look(shard, sample)
    assert_names(found.summary, "100.0%", "width")
    assert found.warning


@pytest.mark.parametrize("shift", [1, 2, 3])
def test_shifted_bytes_fail(shard: Shard, sample: Sample, shift: int) -> None:
    path = shard.directory / TOKENS
    data = np.fromfile(path, "<u2").astype("<u4").tobytes()
    path.write_bytes(bytes(shift) + data[:-shift])
    assert not look(shard, sample, "uint32").passed


def test_noise_and_monotony_fail(shard: Shard, sample: Sample) -> None:
    rng = np.random.default_rng(0)
    edit(shard.directory / TOKENS, "<u2", lambda t: rng.integers(0, 4096, len(t)))
    assert_names(look(shard, sample).summary, "noise")
    edit(shard.directory / TOKENS, "<u2", lambda t: np.arange(len(t)) % 4 + 300)
    found = look(shard, sample)
    assert "2.0 bits per token" in found.summary
    assert found.warning
    assert "accept: {looks_like_text: <why>}" in found.summary


def test_invalid_utf8_bytes_fail(shard: Shard, sample: Sample) -> None:
    [byte] = [i for i in range(300) if sample.bundle.decode([i, i]) == "\ufffd\ufffd"][:1]
    edit(shard.directory / TOKENS, "<u2", lambda t: np.where(np.arange(len(t)) % 4, byte, t))
    assert_names(look(shard, sample, windows=1).summary, "printable")
