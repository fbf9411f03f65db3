"""Checks of the copied views: each defect planted under a receipt that agrees with it, as a bug would leave it."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.formats import hf_parquet
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.receipt import Receipt, record_files
from dataprep_assets.pipelines.corpus.declaration import View
from dataprep_assets.pipelines.corpus.view import (
    CHECKS,
    CopiedBlocks,
    OpenedCorpusView,
    artifact_name,
    load_combined_splits,
    load_corpus_view,
)
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.corpus.pipeline import run_pipeline, sample_declaration

CORPUS = sample_declaration(
    views=["mds", "hf_parquet"], mds_sequence_length=256, splits={"val": ["validation/**"], "test": ["test/**"]}
)
VAL = "data/val-00000-of-00001.parquet"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("views")
    assert run_pipeline(CORPUS, root).failed == {}
    return root


@pytest.fixture
def store(finished: Path, tmp_path: Path) -> LocalArtifacts:
    return LocalArtifacts(Path(shutil.copytree(finished, tmp_path / "root")))


def prove(store: LocalArtifacts, view: View, *, sign: bool = False, **facts: object) -> dict[str, Finding]:
    """Both findings; with `sign` the receipt describes the files as they are now."""
    artifact, splits = CORPUS.artifact(artifact_name(view)), load_combined_splits(CORPUS, store)
    directory, receipt = store.local(artifact), store.require(artifact)
    if sign:
        receipt = replace(receipt, files=record_files(directory))
    receipt = replace(receipt, facts={**receipt.facts, **facts})
    opened = OpenedCorpusView(artifact, store, CORPUS, load_corpus_view(view), splits)
    opened.__dict__.update(directory=directory, receipt=receipt)
    return {check.name: check.run(opened) for check in CHECKS[:2]}


def failed(found: dict[str, Finding]) -> set[str]:
    return {name for name, finding in found.items() if not finding.passed}


def told(found: dict[str, Finding]) -> str:
    return " ".join(finding.summary + str(finding.table) for finding in found.values())


@pytest.mark.parametrize("view", ["mds", "hf_parquet"])
def test_a_sound_view_is_proven_and_says_how_much(store: LocalArtifacts, view: View) -> None:
    found = prove(store, view)
    assert failed(found) == set()
    tokens = sum(split.token_count for split in load_combined_splits(CORPUS, store))
    assert found["matches_combined_bins"].facts["tokens"] == tokens
    assert "id for id" in found["matches_combined_bins"].summary


def _rewrite(directory: Path, change: Callable[[list[list[int]]], list[list[int]]]) -> None:
    documents = change(pq.read_table(directory / VAL)["input_ids"].to_pylist())
    schema = pa.schema([pa.field("input_ids", pa.list_(pa.field("element", pa.int32())))])
    pq.write_table(pa.table([documents], schema=schema), directory / VAL)


def _join(documents: list[list[int]]) -> list[list[int]]:
    return [documents[0][:-1], [documents[0][-1], *documents[1]], *documents[2:]]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda d: [d[1], d[0], *d[2:]], "val: token"),
        (_join, "document 0 or later"),
        (lambda d: d[:-1], "19"),
        (lambda d: [*d, [1]], "val: token 10166"),
        (lambda d: [[*d[0][:-1], d[0][-1] + 1], *d[1:]], "val: token"),
    ],
    ids=["swapped", "cut elsewhere", "lost", "added", "other id"],
)
def test_parquet_that_is_not_the_stream_is_found(
    store: LocalArtifacts, change: Callable[[list[list[int]]], list[list[int]]], complaint: str
) -> None:
    _rewrite(store.local(CORPUS.artifact("hf_parquet_bins")), change)
    # Unless the receipt is signed again, the digest in the receipt shows the change.
    assert "matches_combined_bins" in failed(prove(store, "hf_parquet"))
    found = prove(store, "hf_parquet", sign=True)
    # The layout is also invalid, because the card contains the digest of the files.
    assert failed(found) == {"matches_combined_bins", "layout_valid"}
    assert complaint in told(found)


def test_a_card_of_other_claims_and_a_lost_card_are_found(store: LocalArtifacts) -> None:
    card = store.local(CORPUS.artifact("hf_parquet_bins")) / hf_parquet.CARD
    text = card.read_text()
    for old, new in (
        ("num_examples: 20", "num_examples: 21"),
        ("num_bytes: ", "num_bytes: 1"),
        ("sha256:", "sha256:0"),
    ):
        card.write_text(text.replace(old, new, 1))
        found = prove(store, "hf_parquet", sign=True)
        assert failed(found) == {"layout_valid"}
        assert new in told(found).replace("'", "")
    card.unlink()
    assert failed(prove(store, "hf_parquet", sign=True)) == {"layout_valid"}


def _shard(store: LocalArtifacts) -> Path:
    return store.local(CORPUS.artifact("mds_bins")) / "val" / "shard.00000.mds"


def _reindex(shard: Path) -> None:
    index = json.loads((shard.parent / "index.json").read_bytes())
    index["shards"][0]["raw_data"]["hashes"]["sha256"] = hashlib.sha256(shard.read_bytes()).hexdigest()
    (shard.parent / "index.json").write_text(json.dumps(index))


def test_an_mds_shard_of_other_ids_is_found(store: LocalArtifacts) -> None:
    data = bytearray(_shard(store).read_bytes())
    data[-4:] = np.array([int.from_bytes(data[-4:], "little") ^ 1], "<i4").tobytes()
    _shard(store).write_bytes(data)
    assert failed(prove(store, "mds", sign=True)) == {"matches_combined_bins", "layout_valid"}
    _reindex(_shard(store))
    found = prove(store, "mds", sign=True)
    assert failed(found) == {"matches_combined_bins"}
    assert_names(told(found), "val", 9983, "combined_bins")


def test_an_mds_index_that_lists_too_little_is_found(store: LocalArtifacts) -> None:
    index = _shard(store).with_name("index.json")
    value = json.loads(index.read_bytes())
    index.write_text(json.dumps({**value, "shards": []}))
    _shard(store).unlink()
    found = prove(store, "mds", sign=True)
    assert "layout_valid" in failed(found)
    assert "0 samples of 256" in told(found)


def test_an_mds_index_of_malformed_entries_is_found(store: LocalArtifacts) -> None:
    _shard(store).with_name("index.json").write_text('{"shards": [{}], "version": 2}')
    found = prove(store, "mds", sign=True)
    assert failed(found) == {"matches_combined_bins", "layout_valid"}
    assert "entry 0 is malformed" in found["matches_combined_bins"].summary


@pytest.mark.parametrize("error", [KeyError("shards"), IndexError("a shard"), ValueError("no shard"), TypeError("x")])
def test_a_copy_that_the_reader_of_another_package_cannot_read_is_a_verdict(
    store: LocalArtifacts, error: Exception
) -> None:
    def read(directory: Path, split: str) -> CopiedBlocks:
        yield np.zeros(0, np.int32), np.zeros(0, np.int64)
        raise error

    artifact, splits = CORPUS.artifact("mds_bins"), load_combined_splits(CORPUS, store)
    view = replace(load_corpus_view("mds"), copied=read)
    found = CHECKS[0].run(OpenedCorpusView(artifact, store, CORPUS, view, splits))
    assert not found.passed
    assert_names(found.summary, "val", type(error).__name__, error)


def test_a_receipt_that_leaves_out_more_than_the_rest_is_found(store: LocalArtifacts) -> None:
    counts = {split.split: split.token_count % 256 for split in load_combined_splits(CORPUS, store)}
    assert failed(prove(store, "mds", tokens_left_out=counts)) == set()
    assert failed(prove(store, "mds", tokens_left_out=counts | {"val": counts["val"] + 256})) == {"layout_valid"}


def test_an_unreadable_file_is_a_verdict_and_no_accident(store: LocalArtifacts) -> None:
    for view, path in (("hf_parquet", VAL), ("mds", "val/index.json")):
        broken = store.local(CORPUS.artifact(artifact_name(view))) / path  # type: ignore[arg-type]
        broken.write_bytes(broken.read_bytes()[:20])
        assert failed(prove(store, view, sign=True)) == {"matches_combined_bins", "layout_valid"}  # type: ignore[arg-type]


def test_the_receipt_of_a_view_names_the_stream_it_copies(store: LocalArtifacts) -> None:
    receipt: Receipt = store.require(CORPUS.artifact("mds_bins"))
    combined = {s: store.require(CORPUS.artifact("combined_bins", s)).content for s in CORPUS.splits}
    assert receipt.inputs == combined
