"""Workers that begin with an engine which has seen some of the text make the same bytes, and report the same damage."""

from dataclasses import replace
from pathlib import Path

import pytest

from dataprep_assets.errors import CorruptSourceError
from dataprep_assets.stream import shard_job
from dataprep_assets.stream.shard_job import build_token_bins
from dataprep_assets.stream.token_shard import TokenShard
from dataprep_assets.stream.token_stream import load_encoder, load_warm_encoder
from dataprep_assets_tests.pipelines.corpus.pipeline import data_files
from dataprep_assets_tests.pipelines.corpus.shards import shard_work, source, stream_plan, write_lines

SHARDS = 5


def shards(root: Path, folder: Path) -> list[TokenShard]:
    """A shard of two files for each pair of the folder."""
    paths = sorted(folder.iterdir())
    works = [
        shard_work(root, stream_plan(sample_rate=0.1), [source(path) for path in paths[at : at + 2]])
        for at in range(0, len(paths), 2)
    ]
    return [replace(w, artifact=replace(w.artifact, partition=f"train-{n:05d}")) for n, w in enumerate(works)]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(2 * SHARDS):
        lines = [f"document {number} {row} knows the word {'z' * row} and {row * 7919}" for row in range(80)]
        write_lines(folder / f"{number:02d}.jsonl.zst", lines)
    return folder


def test_the_bytes_are_those_of_a_cold_engine(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cold = list(build_token_bins(shards(tmp_path / "cold", texts), workers=None))
    monkeypatch.setattr(shard_job, "WARM_UP_BYTES", 1)
    loading = shard_job._build_encoder_loader(shards(tmp_path / "warm", texts))
    assert loading is not None
    assert loading.func is load_warm_encoder  # type: ignore[attr-defined]
    warm = list(build_token_bins(shards(tmp_path / "warm", texts), workers=2))
    assert [outcome.error for outcome in cold + warm] == [None] * (2 * SHARDS)
    assert data_files(tmp_path / "warm") == data_files(tmp_path / "cold")
    counts = [{o.partition: o.receipt.ledger for o in found if o.receipt is not None} for found in (cold, warm)]
    assert counts[0] == counts[1]  # no ledger counts the documents of the warm-up


def test_finished_shards_need_no_encoder(texts: Path, tmp_path: Path) -> None:
    works = shards(tmp_path / "root", texts)
    loading = shard_job._build_encoder_loader(works)
    assert loading is not None
    assert loading.func is load_encoder  # type: ignore[attr-defined]
    assert all(outcome.error is None for outcome in build_token_bins(works, workers=None))
    assert shard_job._build_encoder_loader(works) is None


def test_a_damaged_file_that_workers_would_have_warmed_up_with_is_named(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_job, "WARM_UP_BYTES", 1)
    works = shards(tmp_path / "root", texts)
    damaged = texts / "00.jsonl.zst"
    damaged.write_bytes(damaged.read_bytes()[:-20])
    found = {outcome.partition: outcome.error for outcome in build_token_bins(works, workers=2)}
    assert isinstance(found.pop("train-00000"), CorruptSourceError)
    assert set(found.values()) == {None}


def test_shards_without_files_and_of_other_fields_are_left_out_of_the_warm_up(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_job, "WARM_UP_BYTES", 1)
    first, second, third, *_ = shards(tmp_path / "root", texts)
    other = replace(third, plan=replace(third.plan, text_field="body"))
    loading = shard_job._build_encoder_loader([replace(first, files=(), sizes=()), second, other])
    assert loading is not None
    assert set(loading.args[1]) == set(second.files)  # type: ignore[attr-defined]
    loading = shard_job._build_encoder_loader([replace(first, files=(), sizes=())])
    assert loading is not None
    assert loading.func is load_encoder  # type: ignore[attr-defined]
