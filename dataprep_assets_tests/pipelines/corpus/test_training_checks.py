"""What a trainer reads from combined bins: alignment and learnability, and the place where either fails."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets.engine.checks.check import Finding, fail_on_errors
from dataprep_assets.formats import document_ends
from dataprep_assets.stream.eye_test import alignment, random_batches_load
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.corpus.sample_shards import Combined

SEPARATOR, VOCABULARY = 4094, 4096


def aligned(artifact: Combined, dtype: str = "uint16", **options: Any) -> Finding:
    ends = document_ends.open_ends(artifact.ends)
    options = {"separator_id": SEPARATOR, "vocab_size": VOCABULARY, "seed": 1} | options
    return alignment(artifact.tokens, dtype, ends, **options)


# --- alignment


def test_the_combined_bin_is_aligned_for_every_seed(combined: Combined) -> None:
    for seed in range(5):
        found = aligned(combined, seed=seed)
        assert found.passed
        assert int(found.facts["boundaries"]) >= int(found.facts["windows"])


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
@pytest.mark.parametrize("shift", [1, 2, 3])
def test_a_file_shifted_by_bytes_is_not_aligned(copy: Combined, dtype: str, shift: int) -> None:
    data = np.fromfile(copy.tokens, "<u2").astype("<u2" if dtype == "uint16" else "<u4").tobytes()
    copy.tokens.write_bytes(data)
    assert aligned(copy, dtype).passed
    copy.tokens.write_bytes(bytes(shift) + data[:-shift])
    found = aligned(copy, dtype)
    assert not found.passed
    assert "window at token offset" in found.summary


def test_a_shift_is_seen_even_where_the_separator_is_zero(copy: Combined) -> None:
    tokens = np.fromfile(copy.tokens, "<u2").astype("<u4")
    tokens[tokens == 0] = 1
    tokens[tokens == SEPARATOR] = 0
    data = tokens.tobytes()
    copy.tokens.write_bytes(data)
    assert aligned(copy, "uint32", separator_id=0).passed
    copy.tokens.write_bytes(bytes(1) + data[:-1])
    assert "vocabulary (0 to 4095" in aligned(copy, "uint32", separator_id=0).summary


def test_a_lost_token_in_the_middle_is_not_aligned(copy: Combined) -> None:
    tokens = np.fromfile(copy.tokens, "<u2")
    middle = len(tokens) // 2
    np.delete(tokens, middle).tofile(copy.tokens)
    assert f"{2 * len(tokens) - 2:,} bytes, but its" in aligned(copy).summary
    np.append(np.delete(tokens, middle), 5).astype("<u2").tofile(copy.tokens)
    found = aligned(copy)
    assert not found.passed
    assert "is not the separator" in found.summary


def test_another_dtype_is_not_aligned(combined: Combined) -> None:
    found = aligned(combined, "uint32")
    assert_names(found.summary, combined.tokens.stat().st_size * 2, "uint32")
    half = document_ends.open_ends(combined.ends) // np.uint64(2)
    found = alignment(combined.tokens, "uint32", half, separator_id=SEPARATOR, vocab_size=VOCABULARY, seed=1)
    assert not found.passed


def test_a_separator_inside_a_document_is_not_aligned_unless_text_may_hold_it(copy: Combined) -> None:
    tokens, ends = np.fromfile(copy.tokens, "<u2"), np.fromfile(copy.ends, "<u8")
    tokens[int(ends[-1]) - 3] = SEPARATOR
    tokens.tofile(copy.tokens)
    assert "where no document ends" in aligned(copy, block=4096).summary
    assert aligned(copy, block=4096, literal_separators=1).passed
    assert aligned(copy, block=4096, bos_id=SEPARATOR).passed


@pytest.mark.parametrize("tokens", [0, 1, 2, 3])
def test_streams_of_a_few_tokens_are_aligned(tmp_path: Path, tokens: int) -> None:
    np.full(tokens, SEPARATOR, "<u2").tofile(tmp_path / "t.bin")
    ends = np.arange(1, tokens + 1, dtype=np.uint64)
    options: dict[str, Any] = {"separator_id": SEPARATOR, "vocab_size": VOCABULARY, "seed": 0}
    assert alignment(tmp_path / "t.bin", "uint16", ends, **options).passed
    if tokens > 1:
        np.full(tokens, 5, "<u2").tofile(tmp_path / "t.bin")
        assert not alignment(tmp_path / "t.bin", "uint16", ends, **options).passed


# --- random_batches_load


def sampled(path: Path, dtype: str = "uint16", vocab_size: int = VOCABULARY) -> Finding:
    return random_batches_load(path, dtype, vocab_size, seed=3, source_at=lambda token: f"a.jsonl: row {token + 1}")


def test_token_frequencies_beat_the_uniform_model(combined: Combined) -> None:
    found = sampled(combined.tokens)
    assert found.passed
    assert float(found.facts["uniform_loss"]) == pytest.approx(np.log(VOCABULARY), abs=1e-4)
    assert float(found.facts["unigram_loss"]) < float(found.facts["uniform_loss"]) - 0.5


def test_two_blocks_that_have_nothing_in_common_are_a_warning(tmp_path: Path) -> None:
    """As a corpus of two short documents in two languages: nobody can tell them from noise."""
    ids = np.concatenate([np.arange(257), np.arange(1000, 1256)]).astype("<u2")
    ids.tofile(tmp_path / "two.bin")
    found = sampled(tmp_path / "two.bin")
    assert not found.passed
    assert found.warning
    np.random.default_rng(0).integers(0, VOCABULARY, 20 * 256).astype("<u2").tofile(tmp_path / "noise.bin")
    assert not sampled(tmp_path / "noise.bin").warning


def test_a_short_split_is_a_warning_and_one_of_no_token_is_not(tmp_path: Path) -> None:
    (tmp_path / "none.bin").touch()
    np.arange(100).astype("<u2").tofile(tmp_path / "short.bin")
    none, short = sampled(tmp_path / "none.bin"), sampled(tmp_path / "short.bin")
    assert (none.passed, none.warning, short.passed, short.warning) == (False, False, False, True)
    assert none.summary.startswith("none.bin: no tokens: every row of the split was dropped")


def test_noise_is_not_learnable(copy: Combined) -> None:
    size = copy.tokens.stat().st_size // 2
    np.random.default_rng(0).integers(0, VOCABULARY, size).astype("<u2").tofile(copy.tokens)
    assert_names(sampled(copy.tokens).summary, "noise")


def test_an_id_outside_the_vocabulary_and_a_constant_row_name_their_offset(copy: Combined) -> None:
    tokens = np.fromfile(copy.tokens, "<u2")
    tokens[50_000:60_000] = 5000
    tokens.tofile(copy.tokens)
    found = sampled(copy.tokens)
    offset = int(found.summary.split("token offset ")[1].split()[0])
    assert 50_000 <= offset < 60_000
    tokens[50_000:60_000] = 7
    tokens.tofile(copy.tokens)
    found = sampled(copy.tokens)
    assert "are id 7: a.jsonl: row" in found.summary
    assert found.warning
    np.full_like(tokens, 7).tofile(copy.tokens)
    found = sampled(copy.tokens)
    assert (found.passed, found.warning) == (False, False)


def test_another_dtype_cannot_be_sampled(combined: Combined) -> None:
    assert "vocabulary (0 to 4095" in sampled(combined.tokens, "uint32").summary


def test_too_few_tokens_are_a_warning(tmp_path: Path) -> None:
    np.arange(300, dtype="<u2").tofile(tmp_path / "few.bin")
    found = sampled(tmp_path / "few.bin")
    assert (found.passed, found.warning) == (False, True)
    assert "300 tokens are too few" in found.summary


def test_a_missing_file_is_a_failed_finding(tmp_path: Path) -> None:
    assert "No such file" in fail_on_errors(sampled)(tmp_path / "gone.bin").summary
