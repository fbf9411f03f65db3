"""Tests of `dataprep_assets.formats.megatron`, some with Megatron-Core itself."""

import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dataprep_assets.errors import FormatError
from dataprep_assets.formats import document_ends, flat_bins, megatron
from dataprep_assets_tests.formats.streams import EOS, NONEMPTY, SHAPES, make_ends, make_tokens, write_stream
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.readers.megatron import build_pair, indexed_documents, read_documents, train_samples

DTYPES = ["uint16", "uint32"]
GIB = 1 << 30


def _write_pair(directory: Path, lengths: list[int], dtype: str = "uint32") -> tuple[Path, Path]:
    """Write a pair as the product does: the bin as a hard link to the stream, the index from the document ends."""
    tokens, ends = write_stream(directory, lengths, dtype, "stream")
    flat_bins.concatenate([tokens], directory / "train.bin")
    megatron.write_idx(directory / "train.idx", document_ends.open_ends(ends), dtype=dtype)
    return directory / "train.bin", directory / "train.idx"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_written_index_is_valid_and_is_read_back(tmp_path: Path, shape: str, dtype: str) -> None:
    lengths = SHAPES[shape]
    pair = _write_pair(tmp_path, lengths, dtype)
    megatron.validate(*pair)
    index = megatron.read_idx(pair[1])
    assert index.dtype == dtype
    assert index.lengths.tolist() == lengths
    assert index.document_indices.tolist() == list(range(len(lengths) + 1))
    itemsize = flat_bins.DTYPES[dtype].itemsize
    assert index.pointers.tolist() == [itemsize * sum(lengths[:at]) for at in range(len(lengths))]
    assert not index.lengths.flags.writeable


@pytest.mark.parametrize("block", [1, 3, 7])
def test_block_sizes_do_not_change_the_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    ends = make_ends(SHAPES["many"])
    megatron.write_idx(tmp_path / "whole.idx", ends, dtype="uint32")
    monkeypatch.setattr(megatron, "BLOCK", block)
    monkeypatch.setattr(document_ends, "BLOCK", block + 1)
    megatron.write_idx(tmp_path / "blocks.idx", (ends[at : at + 13] for at in range(0, ends.size, 13)), dtype="uint32")
    assert (tmp_path / "whole.idx").read_bytes() == (tmp_path / "blocks.idx").read_bytes()
    make_tokens(SHAPES["many"], "uint32").tofile(tmp_path / "bin")
    megatron.validate(tmp_path / "bin", tmp_path / "blocks.idx")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_bytes_equal_those_of_megatrons_builder(tmp_path: Path, shape: str, dtype: str) -> None:
    ours = _write_pair(tmp_path, SHAPES[shape], dtype)
    documents = np.split(make_tokens(SHAPES[shape], dtype), make_ends(SHAPES[shape])[:-1].astype(np.int64))
    build_pair(
        tmp_path / "theirs", documents if SHAPES[shape] else [], dtype="uint16" if dtype == "uint16" else "int32"
    )
    for mine, suffix in zip(ours, ("bin", "idx"), strict=True):
        assert mine.read_bytes() == (tmp_path / f"theirs.{suffix}").read_bytes()


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", NONEMPTY)
def test_megatron_reads_every_document_of_a_hard_linked_bin(tmp_path: Path, shape: str, dtype: str, mmap: bool) -> None:
    lengths = NONEMPTY[shape]
    bin_path, _ = _write_pair(tmp_path, lengths, dtype)
    assert bin_path.stat().st_nlink == 2
    found, document_indices = indexed_documents(tmp_path / "train", mmap=mmap)
    assert len(found) == len(lengths)
    assert document_indices == list(range(len(lengths) + 1))
    documents = np.split(make_tokens(lengths, dtype), make_ends(lengths)[:-1].astype(np.int64))
    for read, document in zip(found, documents, strict=True):
        assert np.array_equal(read, document)


def test_megatron_cannot_map_an_empty_bin_but_opens_it_unmapped(tmp_path: Path) -> None:
    _write_pair(tmp_path, [])
    with raises(ValueError, "empty"):
        indexed_documents(tmp_path / "train")
    assert indexed_documents(tmp_path / "train", mmap=False)[0] == []


def test_megatrons_gpt_dataset_trains_on_the_stream(tmp_path: Path) -> None:
    """Every sample is a window of ``sequence_length + 1`` tokens of the documents in its shuffled order."""
    lengths = [length + 1 for length in SHAPES["many"]]
    _write_pair(tmp_path, lengths)
    trained = train_samples(tmp_path / "train", len(lengths), tmp_path / "cache", length=32, eod=EOS)
    documents = np.split(make_tokens(lengths, "uint32"), make_ends(lengths)[:-1].astype(np.int64))
    shuffled = np.concatenate([documents[at] for at in trained["document_index"]])
    assert len(trained["tokens"]) == (sum(lengths) - 1) // 32
    for sample in range(len(trained["tokens"])):
        window = 32 * int(trained["shuffle_index"][sample])
        assert np.array_equal(trained["tokens"][sample], shuffled[window : window + 32])
        assert np.array_equal(trained["labels"][sample], shuffled[window + 1 : window + 33])


def _cut(path: Path, change: int) -> None:
    os.truncate(path, path.stat().st_size + change)


def _patch(path: Path, offset: int, content: bytes) -> None:
    with open(path, "r+b") as handle:
        handle.seek(offset)
        handle.write(content)


def _remove_leading_zero(idx: Path) -> None:
    """Change an index of three documents to the indices 1, 2, 3: D is one lower and the file eight bytes shorter."""
    raw = idx.read_bytes()
    indices_at = 34 + 12 * 3
    idx.write_bytes(raw[:26] + struct.pack("<Q", 3) + raw[34:indices_at] + raw[indices_at + 8 :])


# The index has three documents of 4, 3 and 5 tokens in uint32. The lengths begin at byte 34, the pointers at 46, and
# the document indices at 70, and the file ends at 102.
DEFECTS: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "bin truncated by a token": (lambda bin_, idx: _cut(bin_, -4), (44, 48)),
    "bin truncated within a token": (lambda bin_, idx: _cut(bin_, -1), (47, 48)),
    "bin longer": (lambda bin_, idx: _cut(bin_, 4), (52, 48)),
    "bin empty": (lambda bin_, idx: os.truncate(bin_, 0), (0, 48)),
    "idx truncated": (lambda bin_, idx: _cut(idx, -8), ("truncated",)),
    "idx truncated in its header": (lambda bin_, idx: os.truncate(idx, 33), ("truncated",)),
    "idx empty": (lambda bin_, idx: os.truncate(idx, 0), ("truncated",)),
    "idx longer": (lambda bin_, idx: _cut(idx, 1), ("long",)),
    "idx with multimodal modes": (lambda bin_, idx: _cut(idx, 3), ("multimodal",)),
    "wrong magic": (
        lambda bin_, idx: _patch(idx, 0, b"TNTIDX\0\0"),
        ("b'TNTIDX\\x00\\x00\\x00'", "b'MMIDIDX\\x00\\x00'"),
    ),
    "wrong version": (lambda bin_, idx: _patch(idx, 9, b"\2"), (2,)),
    "unknown code": (lambda bin_, idx: _patch(idx, 17, b"\x09"), (9,)),
    "code of another width": (
        lambda bin_, idx: _patch(idx, 17, b"\x08"),
        ("dtype",),
    ),
    "code of the same width": (lambda bin_, idx: _patch(idx, 17, b"\x07"), (7,)),
    "sequence count": (lambda bin_, idx: _patch(idx, 18, struct.pack("<Q", 4)), (4,)),
    "sequence count beyond reason": (lambda bin_, idx: _patch(idx, 18, b"\xff" * 8), ("sequences",)),
    "no leading 0": (lambda bin_, idx: _remove_leading_zero(idx), (3, 3)),
    "document indices out of step": (lambda bin_, idx: _patch(idx, 70, struct.pack("<q", 1)), (0, 1)),
    "last document index": (lambda bin_, idx: _patch(idx, 94, struct.pack("<q", 2)), (3, 2)),
    "negative length": (lambda bin_, idx: _patch(idx, 38, struct.pack("<i", -3)), (1, -3)),
    "longer length": (lambda bin_, idx: _patch(idx, 38, struct.pack("<i", 4)), (2, 28)),
    "longer last length": (lambda bin_, idx: _patch(idx, 42, struct.pack("<i", 6)), (48, 52)),
    "first pointer": (lambda bin_, idx: _patch(idx, 46, struct.pack("<q", 4)), (0, 4)),
    "last pointer": (lambda bin_, idx: _patch(idx, 62, struct.pack("<q", -1)), (2, -1)),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_every_defect_is_refused(tmp_path: Path, defect: str) -> None:
    bin_path, idx_path = _write_pair(tmp_path, [4, 3, 5])
    damage, values = DEFECTS[defect]
    damage(bin_path, idx_path)
    with raises(FormatError, *values):
        megatron.validate(bin_path, idx_path)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", NONEMPTY)
def test_a_swapped_dtype_is_refused_whenever_there_is_a_token(tmp_path: Path, shape: str, dtype: str) -> None:
    bin_path, idx_path = _write_pair(tmp_path, NONEMPTY[shape], dtype)
    _patch(idx_path, 17, b"\x08" if dtype == "uint32" else b"\x04")
    with pytest.raises(FormatError):
        megatron.validate(bin_path, idx_path)


@pytest.mark.parametrize("dtype", DTYPES)
def test_pointers_continue_past_2_and_4_gib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    monkeypatch.setattr(megatron, "BLOCK", 3)
    itemsize = flat_bins.DTYPES[dtype].itemsize
    lengths = [GIB // itemsize - 1, 2, 0, GIB // itemsize, GIB // itemsize, GIB // itemsize, GIB // itemsize, 5]
    megatron.write_idx(tmp_path / "train.idx", make_ends(lengths), dtype=dtype)
    pointers = megatron.read_idx(tmp_path / "train.idx").pointers.tolist()
    assert pointers == [itemsize * sum(lengths[:at]) for at in range(len(lengths))]
    assert pointers[-1] > 5 * GIB
    # A sparse file is enough, because the check may read only the size.
    (tmp_path / "train.bin").touch()
    os.truncate(tmp_path / "train.bin", itemsize * sum(lengths))
    megatron.validate(tmp_path / "train.bin", tmp_path / "train.idx")
    os.truncate(tmp_path / "train.bin", itemsize * sum(lengths) - 4 * GIB)
    with raises(FormatError, tmp_path / "train.bin", tmp_path / "train.idx", itemsize * sum(lengths), dtype):
        megatron.validate(tmp_path / "train.bin", tmp_path / "train.idx")


def test_megatron_reads_a_document_past_4_gib(tmp_path: Path) -> None:
    lengths = [GIB, GIB, 3]
    megatron.write_idx(tmp_path / "train.idx", make_ends(lengths), dtype="uint32")
    with open(tmp_path / "train.bin", "wb") as handle:
        handle.seek(8 * GIB)
        handle.write(np.array([5, 6, 7], dtype="<u4").tobytes())
    (found,) = read_documents(tmp_path / "train", [2])
    assert found.tolist() == [5, 6, 7]


def test_document_counts_continue_past_two_to_the_31(tmp_path: Path) -> None:
    """Tests only the structure: a sparse index of 43 GB, of which only the header is read."""
    documents = 2**31 + 5
    with open(tmp_path / "train.idx", "wb") as handle:
        handle.write(struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 4, documents, documents + 1))
        handle.truncate(34 + 12 * documents + 8 * (documents + 1))
    index = megatron.read_idx(tmp_path / "train.idx")
    assert (index.lengths.size, index.pointers.size, index.document_indices.size) == (
        documents,
        documents,
        documents + 1,
    )
    assert index.document_indices[-1] == 0


def test_the_longest_document_is_two_to_the_31_minus_1_tokens(tmp_path: Path) -> None:
    megatron.write_idx(tmp_path / "a.idx", np.array([3, 2**31 + 2]), dtype="uint32")
    assert megatron.read_idx(tmp_path / "a.idx").lengths.tolist() == [3, 2**31 - 1]
    with raises(FormatError, 1, 1 << 31):
        megatron.write_idx(tmp_path / "b.idx", np.array([3, 2**31 + 3]), dtype="uint32")
    assert not (tmp_path / "b.idx").exists()


def test_streams_that_megatron_cannot_index_are_refused(tmp_path: Path) -> None:
    with raises(FormatError, "'int32'", "uint16", "uint32"):
        megatron.write_idx(tmp_path / "a.idx", np.array([1]), dtype="int32")
    with raises(FormatError, 1, 2):
        megatron.write_idx(tmp_path / "a.idx", np.array([3, 2]), dtype="uint32")
    assert not (tmp_path / "a.idx").exists()
    (tmp_path / "a.idx").touch()
    with pytest.raises(FileExistsError):
        megatron.write_idx(tmp_path / "a.idx", np.array([3]), dtype="uint32")
