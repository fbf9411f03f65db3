"""Readers return the samples and ids of the upstream class for the same files, or refuse the files."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from dataprep_assets.errors import FormatError
from dataprep_assets.serving.window.readers import Shard
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.readers.pytorch import loaded_by_workers, original_samples, our_samples
from dataprep_assets_tests.serving.releases import LENGTH, make_release, tokens_of


def shard_in(folder: Path, dtype: str = "uint32", samples: int = 8) -> Shard:
    release = make_release(folder, (samples,), dtype=dtype)
    files = release.shards_of("train")[0]
    return Shard(
        index=0,
        token_path=folder / files.token_file.key,
        ids_path=folder / files.ids_file.key,
        sequence_length=LENGTH,
    )


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_torch_samples_and_ids_equal_the_upstream_ones(tmp_path: Path, dtype: str) -> None:
    shard = shard_in(tmp_path, dtype)
    ours, theirs = our_samples(shard), original_samples(shard.token_path, shard.ids_path, LENGTH)
    assert ours["is_dataset"]
    assert ours["length"] == theirs["length"] == 8
    assert ours["dtypes"] == theirs["dtypes"] == {"torch.uint32"}
    assert np.array_equal(ours["samples"], theirs["samples"])
    assert ours["ids"] == theirs["ids"]
    assert ours["beyond"] is IndexError


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_of_a_dataloader_read_the_shard(tmp_path: Path, context: str) -> None:
    shard = shard_in(tmp_path)
    assert np.array_equal(loaded_by_workers(shard, context).reshape(-1), shard.tokens)


def test_numpy_samples_equal_the_tokens(tmp_path: Path) -> None:
    shard = shard_in(tmp_path)
    tokens = tokens_of(0, 8)
    assert np.array_equal(np.concatenate(list(shard)), tokens)
    assert np.array_equal(shard.batch([5, 0, 5]), tokens.reshape(8, LENGTH)[[5, 0, 5]])
    assert shard.batch([]).shape == (0, LENGTH)
    assert not shard.tokens.flags.writeable
    again = pickle.loads(pickle.dumps(shard))
    assert np.array_equal(again.tokens, shard.tokens)
    assert again.sample_id(7) == shard.sample_id(7)


@pytest.mark.parametrize("k", [-1, 8])
def test_indexes_beyond_either_end_are_refused(tmp_path: Path, k: int) -> None:
    shard = shard_in(tmp_path)
    for read in (shard.__getitem__, shard.sample_id, lambda k: shard.batch([0, k])):
        with pytest.raises(IndexError):
            read(k)


def test_a_short_ids_file_is_refused_although_upstream_drops_samples(tmp_path: Path) -> None:
    """See docs/formats/sample-ids.md: 10 samples silently become 8."""
    shard = shard_in(tmp_path, samples=10)
    shard.ids_path.write_bytes(shard.ids_path.read_bytes()[:64])
    assert original_samples(shard.token_path, shard.ids_path, LENGTH)["length"] == 8
    with raises(FormatError, 10):
        pickle.loads(pickle.dumps(shard))


def test_ids_with_a_header_are_refused_although_upstream_reads_empty_samples(tmp_path: Path) -> None:
    """10 samples become 26 ids, the first of which is the magic number of the header.

    See docs/formats/sample-ids.md.
    """
    shard = shard_in(tmp_path, samples=10)
    with open(shard.ids_path, "wb") as file:
        np.save(file, np.asarray(shard.sample_ids))
    original = original_samples(shard.token_path, shard.ids_path, LENGTH)
    assert original["ids"][0].to_bytes(8, "little") == b"\x93NUMPY\x01\x00"
    with raises(FormatError, "headerless"):
        pickle.loads(pickle.dumps(shard))
