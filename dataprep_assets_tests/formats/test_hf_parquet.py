"""Tests of Parquet files with a dataset card, read back by `datasets`."""

import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep_assets.errors import FormatError
from dataprep_assets.formats import hf_parquet
from dataprep_assets.stores.files import sha256_file
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.readers.hf_datasets import input_ids, sizes

LENGTHS = [3, 1, 0, 7, 2, 5, 4]
ENDS = np.cumsum(LENGTHS).astype(np.uint64)
TOKENS = (np.arange(sum(LENGTHS)) * 3001 % 65_521).astype(np.uint16)
DOCUMENTS = [part.tolist() for part in np.split(TOKENS, ENDS[:-1].astype(int))]


def _write(
    folder: Path, rows_per_file: int = 3, tokens: npt.NDArray[np.uint16] = TOKENS
) -> dict[str, hf_parquet.SplitSummary]:
    train = hf_parquet.write_split(folder, "train", tokens, ENDS, rows_per_file=rows_per_file)
    test = hf_parquet.write_split(folder, "test", tokens[:3], ENDS[:1])
    hf_parquet.write_card(folder, "sample", {"train": train, "test": test})
    return {"train": train, "test": test}


def test_datasets_loads_the_splits_of_the_card(tmp_path: Path) -> None:
    _write(tmp_path / "d")
    loaded = input_ids(tmp_path / "d", tmp_path / "cache")
    assert list(loaded) == ["train", "test"]
    assert loaded["train"]["rows"] == DOCUMENTS
    assert loaded["test"]["rows"] == DOCUMENTS[:1]
    assert loaded["train"]["feature"] in (
        "List(Value('int32'))",
        "Sequence(feature=Value(dtype='int32', id=None), length=-1, id=None)",
    )


def test_the_card_has_the_counts_of_datasets_and_is_well_formed(tmp_path: Path) -> None:
    _write(tmp_path / "d", 100)
    found = sizes(tmp_path / "d", tmp_path / "cache")
    assert found["warnings"] == []
    assert found["says"] == found["counted"] == {"train": (7, 4 * (22 + 7) + 3), "test": (1, 4 * (3 + 1) + 1)}


def test_datasets_never_confuses_new_content_with_cached_content(tmp_path: Path) -> None:
    """The names and counts of all splits are equal, and one cache is used for all."""
    cache, here, there = tmp_path / "cache", tmp_path / "a" / "hf_parquet_bins", tmp_path / "b" / "hf_parquet_bins"
    _write(here)
    _write(there, tokens=TOKENS[::-1])

    def first(folder: Path) -> list[int]:
        return [part["rows"][0] for part in input_ids(folder, cache).values()]

    forward, backward = [TOKENS[:3].tolist()] * 2, [TOKENS[::-1][:3].tolist()] * 2
    assert (first(here), first(there)) == (forward, backward)
    # Swap the contents of the two folders.
    shutil.rmtree(here)
    shutil.move(there, here)
    _write(there)
    renamed = Path(shutil.copytree(here, tmp_path / "renamed"))
    assert (first(here), first(there), first(renamed)) == (backward, forward, backward)


@pytest.mark.parametrize("rows", [1, 3, 7, 100])
def test_file_names_have_number_and_total_and_the_files_contain_every_document(tmp_path: Path, rows: int) -> None:
    _write(tmp_path, rows)
    names = sorted(path.name for path in (tmp_path / "data").glob("train-*"))
    count = -(-7 // rows)
    assert names == [f"train-{i:05d}-of-{count:05d}.parquet" for i in range(count)]
    assert [d for name in names for d in pq.read_table(tmp_path / "data" / name)["input_ids"].to_pylist()] == DOCUMENTS
    assert hf_parquet.read_counts(tmp_path) == {"train": 7, "test": 1}


@pytest.mark.parametrize(("tokens", "files"), [(1, 6), (7, 4), (9, 3), (100, 1)])
def test_a_file_ends_at_its_token_limit_and_a_longer_document_has_its_own_file(
    tmp_path: Path, tokens: int, files: int
) -> None:
    written = hf_parquet.write_split(tmp_path, "train", TOKENS, ENDS, tokens_per_file=tokens)
    assert written.files == files
    sizes = [pq.read_table(tmp_path / name)["input_ids"].combine_chunks() for name in sorted(written.digests)]
    assert all(len(rows.flatten()) <= tokens or len(rows) == 1 for rows in sizes)
    assert [document for rows in sizes for document in rows.to_pylist()] == DOCUMENTS


def test_a_row_group_has_a_fixed_number_of_tokens_however_long_the_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf_parquet, "_ROW_GROUP_TOKENS", 8)
    written = hf_parquet.write_split(tmp_path, "train", TOKENS, ENDS)
    (name,) = written.digests
    metadata = pq.read_metadata(tmp_path / name)
    assert [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)] == [3, 1, 2, 1]
    blocks = list(hf_parquet.read_blocks(tmp_path, "train"))
    bounds = [0, *(int(ENDS[row - 1]) for row in (3, 4, 6, 7))]
    assert [ids.tolist() for ids, _ in blocks] == [TOKENS[a:b].tolist() for a, b in pairwise(bounds)]
    assert np.concatenate([lengths for _, lengths in blocks]).tolist() == LENGTHS


def test_existing_files_are_not_overwritten_except_to_resume(tmp_path: Path) -> None:
    written = hf_parquet.write_split(tmp_path, "train", TOKENS, ENDS, rows_per_file=2)
    with pytest.raises(FileExistsError):
        hf_parquet.write_split(tmp_path, "train", TOKENS, ENDS, rows_per_file=2)
    next(iter(tmp_path.glob("data/train-00001*"))).unlink()
    assert hf_parquet.write_split(tmp_path, "train", TOKENS, ENDS, rows_per_file=2, resume=True) == written


def test_the_number_of_threads_does_not_change_the_bytes(tmp_path: Path) -> None:
    written = [
        hf_parquet.write_split(tmp_path / f"{n}", "train", TOKENS, ENDS, rows_per_file=2, threads=n) for n in (1, 4)
    ]
    assert written[0] == written[1]
    for name, digest in written[0].digests.items():
        assert sha256_file(tmp_path / "1" / name) == sha256_file(tmp_path / "4" / name) == digest


def test_every_field_of_the_card_is_compared_with_the_files(tmp_path: Path) -> None:
    splits = _write(tmp_path)
    hf_parquet.validate(tmp_path, splits)
    card = tmp_path / hf_parquet.CARD
    text = card.read_text()
    for old, new, values in (
        ("num_examples: 7", "num_examples: 8", ("splits", "'num_examples': 8")),
        ("num_bytes: 119", "num_bytes: 120", ("splits", "'num_bytes': 120")),
        ("sha256:", "sha256:0", ("description", "sha256")),
        ("list: int32", "list: int64", ("features", "int64")),
        ("data/test-*", "data/train-*", ("configs",)),
    ):
        assert old in text
        card.write_text(text.replace(old, new))
        with raises(FormatError, card, *values):
            hf_parquet.validate(tmp_path, splits)
    for broken in ("", "no front matter", "---\n- a list\n---\n"):
        card.write_text(broken)
        with raises(FormatError, card):
            hf_parquet.validate(tmp_path, splits)


def test_the_digest_of_the_card_depends_only_on_the_files(tmp_path: Path) -> None:
    cards = []
    for name, tokens in (("a", TOKENS), ("b", TOKENS), ("c", TOKENS[::-1])):
        _write(tmp_path / name, tokens=tokens)
        cards.append((tmp_path / name / hf_parquet.CARD).read_bytes())
    assert cards[0] == cards[1] != cards[2]


def test_a_damaged_page_is_found(tmp_path: Path) -> None:
    _write(tmp_path, 100)
    path = tmp_path / "data" / "train-00000-of-00001.parquet"
    offset = pq.read_metadata(path).row_group(0).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    data[offset + 40] ^= 1
    path.write_bytes(data)
    with raises(FormatError, path):
        list(hf_parquet.read_blocks(tmp_path, "train"))


def test_an_empty_split_is_a_file_without_rows(tmp_path: Path) -> None:
    hf_parquet.write_split(tmp_path, "train", TOKENS[:0], ENDS[:0])
    assert hf_parquet.read_counts(tmp_path) == {"train": 0}


def test_a_missing_truncated_or_unknown_file_is_found(tmp_path: Path) -> None:
    _write(tmp_path)
    first = tmp_path / "data" / "train-00000-of-00003.parquet"
    whole = first.read_bytes()
    first.unlink()
    with raises(FormatError, "train", 3):
        hf_parquet.read_counts(tmp_path)
    first.write_bytes(whole[:-5])
    with raises(FormatError, first):
        hf_parquet.read_counts(tmp_path)
    pq.write_table(pa.table({"input_ids": [[1]]}), first)
    with raises(FormatError, first, "int64"):
        hf_parquet.read_counts(tmp_path)


def test_an_invalid_stream_is_refused(tmp_path: Path) -> None:
    with raises(FormatError, "train"):
        hf_parquet.write_split(tmp_path, "train", TOKENS[:-1], ENDS)
    with raises(FormatError, "test", 1 << 31, "int32"):
        hf_parquet.write_split(tmp_path, "test", np.array([1 << 31], np.uint32), np.array([1], np.uint64))
    _write(tmp_path / "d")
    with pytest.raises(FileExistsError):
        hf_parquet.write_split(tmp_path / "d", "train", TOKENS, ENDS, rows_per_file=3)
