"""Tests of `dataprep_assets.formats.datatrove`, some with datatrove itself."""

import os
from pathlib import Path

import numpy as np
import pytest

from dataprep_assets.errors import FormatError
from dataprep_assets.formats import datatrove, flat_bins
from dataprep_assets_tests.formats.streams import SHAPES, make_tokens, write_stream
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.readers.datatrove import windows, write_tokenized_file


def _write(directory: Path, lengths: list[int], dtype: str, tokenizer: str | None = "qwen3") -> Path:
    tokens, ends = write_stream(directory, lengths, dtype, "train.ds")
    datatrove.write_sidecars(tokens, ends, tokens=sum(lengths), dtype=dtype, tokenizer=tokenizer)
    return tokens


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
@pytest.mark.parametrize("shape", SHAPES)
def test_written_files_are_valid_and_the_index_has_the_document_ends(tmp_path: Path, shape: str, dtype: str) -> None:
    tokens = _write(tmp_path, SHAPES[shape], dtype)
    datatrove.validate(tokens, dtype=dtype)
    assert datatrove.build_index_path(tokens).samefile(tmp_path / "train.ds.ends")


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_sidecars_equal_datatroves_own_bytes(tmp_path: Path, shape: str, dtype: str) -> None:
    ids = make_tokens(SHAPES[shape], dtype)
    documents, start = [], 0
    for length in SHAPES[shape]:
        documents.append(ids[start : start + length].tolist())
        start += length
    token_size = flat_bins.DTYPES[dtype].itemsize
    write_tokenized_file(tmp_path / "theirs", "train.ds", documents, tokenizer="qwen3", token_size=token_size)
    _write(tmp_path, SHAPES[shape], dtype)
    for suffix in ("", ".index", ".metadata"):
        assert (tmp_path / f"train.ds{suffix}").read_bytes() == (tmp_path / f"theirs/train.ds{suffix}").read_bytes()


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_datatroves_dataset_reads_the_same_stream_and_positions(tmp_path: Path, dtype: str) -> None:
    # With a separator after each document, no document is empty.
    lengths = [length + 1 for length in SHAPES["many"]]
    tokens = _write(tmp_path, lengths, dtype)
    read = windows(tokens, length=31, token_size=flat_bins.DTYPES[dtype].itemsize)
    ids = make_tokens(lengths, dtype)
    since_start = np.concatenate([np.arange(length) for length in lengths])
    assert len(read) == ids.size // 32
    for window in range(len(read)):
        where = slice(window * 32, window * 32 + 32)
        assert np.array_equal(read[window]["input_ids"], ids[where])
        # datatrove counts positions from the start of the window or of the document, whichever comes later.
        expected = np.minimum(since_start[where], np.arange(32))
        assert np.array_equal(read[window]["positions"], expected)


def test_an_unnamed_tokenizer_has_one_bar_and_datatroves_merger_can_split_it(tmp_path: Path) -> None:
    tokens = _write(tmp_path, [3], "uint32", tokenizer=None)
    first = datatrove.build_metadata_path(tokens).read_text().splitlines()[0]
    name, size = first.split("|")
    assert (name, size) == (datatrove.UNNAMED, "4")


@pytest.mark.parametrize("name", ["a|b", "a\nb", "a\u2028b", "a\n"])
def test_a_name_that_breaks_the_metadata_is_refused(tmp_path: Path, name: str) -> None:
    with raises(FormatError, repr(name)):
        _write(tmp_path, [3], "uint32", tokenizer=name)


def test_a_file_name_that_datatrove_would_not_find_is_refused(tmp_path: Path) -> None:
    tokens, ends = write_stream(tmp_path, [3], "uint32", "train.bin")
    with raises(FormatError, tokens, ".ds"):
        datatrove.write_sidecars(tokens, ends, tokens=3, dtype="uint32", tokenizer="t")


@pytest.mark.parametrize("count", [0, 1, 9, 12, 999, 1_000, 9_994, 9_995, 64_114, 999_499, 999_500, 10**9, 627 * 10**9])
def test_readable_counts_are_formatted_like_humanize(count: int) -> None:
    humanize = pytest.importorskip("humanize")
    assert datatrove.format_count(count) == humanize.metric(count, unit="T")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "qwen3|4\n64",
        "qwen3|4\n64\n64.0 T\nmore",
        "qwen3\n64\n64.0 T",
        "|4\n64\n64.0 T",
        "qwen3|4|4\n64\n64.0 T",
        "qwen3|2\n64\n64.0 T",
        "qwen3|4\n65\n64.0 T",
    ],
)
def test_metadata_that_do_not_match_the_stream_are_refused(tmp_path: Path, text: str) -> None:
    tokens = _write(tmp_path, [60, 4], "uint32")
    datatrove.build_metadata_path(tokens).write_text(text)
    with raises(FormatError, datatrove.build_metadata_path(tokens)):
        datatrove.validate(tokens, dtype="uint32")


@pytest.mark.parametrize("size", [0, 255, 252, 260])
def test_a_stream_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    tokens = _write(tmp_path, [60, 4], "uint32")
    os.truncate(tokens, size)
    with pytest.raises(FormatError):
        datatrove.validate(tokens, dtype="uint32")


def test_a_wrong_dtype_is_refused(tmp_path: Path) -> None:
    tokens = _write(tmp_path, [60, 4], "uint32")
    with pytest.raises(FormatError):
        datatrove.validate(tokens, dtype="uint16")
