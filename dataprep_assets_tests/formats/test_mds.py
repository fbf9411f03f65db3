"""Tests of MDS, read back by mosaicml-streaming."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets.errors import FormatError
from dataprep_assets.formats import mds
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.readers.mosaicml import local_tokens, streamed_tokens, write_windows

TOKENS = (np.arange(1003) * 7 % 65_521).astype(np.uint16)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_streaming_reads_every_sample_in_order(tmp_path: Path, dtype: Any) -> None:
    written = mds.write_mds(tmp_path / "m", TOKENS.astype(dtype), length=16, shard_bytes=1 << 10)
    assert (written.samples, written.tokens_left_out) == (62, 11)
    assert written.shards > 3
    wanted = TOKENS[: 62 * 16].tolist()
    assert local_tokens(tmp_path / "m").tolist() == wanted
    assert streamed_tokens(tmp_path / "m").tolist() == wanted


def test_the_files_equal_those_of_the_upstream_writer(tmp_path: Path) -> None:
    mds.write_mds(tmp_path / "ours", TOKENS, length=16, shard_bytes=1 << 10)
    write_windows(tmp_path / "theirs", TOKENS[: 62 * 16].astype(np.int32).reshape(62, 16), shard_bytes=1 << 10)
    ours, wanted = ({p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in ("ours", "theirs"))
    assert {n: d for n, d in ours.items() if n != "index.json"} == {
        n: d for n, d in wanted.items() if n != "index.json"
    }
    assert json.loads(ours["index.json"]) == json.loads(wanted["index.json"])


def test_the_shards_have_the_digest_of_those_of_mds_writer_0_13(tmp_path: Path) -> None:
    mds.write_mds(tmp_path / "m", TOKENS, length=16, shard_bytes=1 << 10)
    shards = b"".join(path.read_bytes() for path in sorted((tmp_path / "m").glob("*.mds")))
    assert hashlib.sha256(shards).hexdigest() == "347871d38f1e7593f698332150341409ecc2b53d48a674d9d66a1ef4c59d0d59"


def test_the_number_of_threads_does_not_change_the_bytes(tmp_path: Path) -> None:
    written = [mds.write_mds(tmp_path / f"{n}", TOKENS, length=16, shard_bytes=1 << 10, threads=n) for n in (1, 4)]
    assert written[0] == written[1]
    one, four = ({p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in ("1", "4"))
    assert one == four
    assert written[0].digests == {n: hashlib.sha256(d).hexdigest() for n, d in one.items() if n != "index.json"}


def test_the_samples_are_read_back_in_order(tmp_path: Path) -> None:
    mds.write_mds(tmp_path / "m", TOKENS, length=16, shard_bytes=1 << 10)
    blocks = list(mds.read_blocks(tmp_path / "m"))
    assert len(blocks) > 3
    assert np.concatenate(blocks).reshape(-1).tolist() == TOKENS[: 62 * 16].tolist()
    (tmp_path / "m" / "shard.00000.mds").write_bytes(b"short")
    with raises(FormatError, tmp_path / "m" / "shard.00000.mds", 5, 12):
        list(mds.read_blocks(tmp_path / "m"))


def test_existing_files_are_not_overwritten_except_to_resume(tmp_path: Path) -> None:
    written = mds.write_mds(tmp_path / "m", TOKENS, length=16, shard_bytes=1 << 10)
    with pytest.raises(FileExistsError):
        mds.write_mds(tmp_path / "m", TOKENS, length=16, shard_bytes=1 << 10)
    (tmp_path / "m" / "shard.00001.mds").unlink()
    assert mds.write_mds(tmp_path / "m", TOKENS, length=16, shard_bytes=1 << 10, resume=True) == written
    assert mds.validate(tmp_path / "m") == 62


def test_a_stream_shorter_than_a_sample_has_no_samples(tmp_path: Path) -> None:
    assert mds.write_mds(tmp_path / "m", TOKENS[:5], length=16).samples == 0
    assert mds.validate(tmp_path / "m") == 0


@pytest.mark.parametrize(
    ("damage", "values"),
    [
        (lambda p: p.write_bytes(p.read_bytes()[:-1]), ("sha256",)),
        (lambda p: p.write_bytes(p.read_bytes().replace(b"int32", b"int16")), ("sha256",)),
        (lambda p: p.unlink(), ("shard.00001.mds",)),
        (lambda p: p.with_name("shard.00099.mds").write_bytes(b""), ("shard.00099.mds",)),
        (lambda p: p.with_name("index.json").write_text("{}"), ("index.json", "MDS")),
        (
            lambda p: p.with_name("index.json").write_text('{"shards": [], "version": 3}'),
            ("index.json", 3, 2),
        ),
    ],
)
def test_every_damage_is_found(tmp_path: Path, damage: Callable[[Path], object], values: tuple[object, ...]) -> None:
    mds.write_mds(tmp_path / "m", TOKENS, length=16, shard_bytes=1 << 10)
    assert mds.validate(tmp_path / "m") == 62
    damage(tmp_path / "m" / "shard.00001.mds")
    with raises(FormatError, *values):
        mds.validate(tmp_path / "m")


def test_an_index_with_wrong_counts_is_found(tmp_path: Path) -> None:
    mds.write_mds(tmp_path / "m", TOKENS, length=16, shard_bytes=1 << 10)
    index = json.loads((tmp_path / "m" / "index.json").read_bytes())
    for change, values in (
        ({"samples": 3}, ("offsets",)),
        ({"column_sizes": [4]}, (4, "samples")),
        ({"size_limit": 1}, ("configuration",)),
    ):
        broken = {**index, "shards": [{**index["shards"][0], **change}, *index["shards"][1:]]}
        (tmp_path / "m" / "index.json").write_text(json.dumps(broken))
        with raises(FormatError, "shard.00000.mds", *values):
            mds.validate(tmp_path / "m")


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: entry.clear(),
        lambda entry: entry["raw_data"].update(basename=3),
        lambda entry: entry["raw_data"].update(hashes={}),
        lambda entry: entry.update(samples="3"),
        lambda entry: entry.update(samples=-1),
        lambda entry: entry.update(column_sizes=[]),
        lambda entry: entry.update(column_sizes=[0]),
        lambda entry: entry.update(column_sizes=[63]),
        lambda entry: entry.pop("size_limit"),
    ],
)
def test_an_index_with_a_malformed_entry_is_refused(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    mds.write_mds(tmp_path / "m", TOKENS, length=16, shard_bytes=1 << 10)
    path = tmp_path / "m" / "index.json"
    index = json.loads(path.read_bytes())
    change(index["shards"][1])
    path.write_text(json.dumps(index, sort_keys=True))
    values = ("index.json", "MDS", "int32", 1)
    with raises(FormatError, *values):
        mds.validate(tmp_path / "m")
    with raises(FormatError, *values):
        list(mds.read_blocks(tmp_path / "m"))
    with raises(FormatError, *values):
        mds.read_shard_samples(path.read_bytes(), "index.json")
    path.write_text('{"shards": 3, "version": 2}')
    with raises(FormatError, "index.json", "MDS"):
        list(mds.read_blocks(tmp_path / "m"))


@pytest.mark.parametrize(
    ("damage", "values"),
    [
        (lambda data: b"", ("offsets",)),
        (lambda data: b"\0" * 3, ("offsets",)),
        (lambda data: data.replace(b'"version": 2', b'"version: 2"'), ("configuration",)),
    ],
)
def test_a_malformed_shard_with_a_matching_digest_is_found(
    tmp_path: Path, damage: Callable[[bytes], bytes], values: tuple[object, ...]
) -> None:
    mds.write_mds(tmp_path / "m", TOKENS, length=16, shard_bytes=1 << 10)
    shard, path = tmp_path / "m" / "shard.00001.mds", tmp_path / "m" / "index.json"
    shard.write_bytes(damage(shard.read_bytes()))
    index = json.loads(path.read_bytes())
    index["shards"][1]["raw_data"]["hashes"]["sha256"] = hashlib.sha256(shard.read_bytes()).hexdigest()
    path.write_text(json.dumps(index, sort_keys=True))
    with raises(FormatError, shard, *values):
        mds.validate(tmp_path / "m")


def test_data_that_the_format_cannot_hold_is_refused(tmp_path: Path) -> None:
    with raises(FormatError, 1024, 1 << 10):
        mds.write_mds(tmp_path / "a", TOKENS, length=1024, shard_bytes=1 << 10)
    with raises(FormatError, 0):
        mds.write_mds(tmp_path / "a", TOKENS, length=0)
    with raises(FormatError, 1 << 31, "int32"):
        mds.write_mds(tmp_path / "b", np.array([1 << 31], np.uint32), length=1)
