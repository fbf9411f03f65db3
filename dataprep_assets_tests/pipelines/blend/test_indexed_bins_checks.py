"""Every check of a shard of bin and idx files passes on a good shard and fails on each of its defects."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.engine.checks.verdicts import find_all
from dataprep_assets.formats import document_ends, megatron
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.indexed_bins import INDEXED_BINS_CHECKS, prepare_indexed_bins_shards
from dataprep_assets.stream.separators import boundaries_match
from dataprep_assets.stream.token_bins_checks import OpenedTokens, ledger_balances
from dataprep_assets.stream.token_shard import TokenShard
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.blend.pipeline import (
    SEPARATOR,
    declare_pretraining,
    finish_blend,
    make_texts,
    write_rows,
)
from dataprep_assets_tests.pipelines.corpus.shards import bundle
from dataprep_assets_tests.samples import SAMPLE

EOS = bundle().find_token(SEPARATOR, key="separator").id
OPTIONS: dict[str, Any] = {"separator": SEPARATOR, "min_doc_chars": 30, "max_doc_tokens": 60}


def _work(folder: Path, **options: Any) -> TokenShard:
    path = write_rows(folder / "a.jsonl", [*make_texts("a", 20), {"text": "short"}])
    blend = declare_pretraining(
        folder, num_shards=1, pretrain=OPTIONS | options, blend={"datasets": [{"name": "a", "path": str(path)}]}
    )
    _, _, plan = finish_blend(blend, folder / "out")
    return prepare_indexed_bins_shards(blend, LocalArtifacts(folder / "out"), plan, plan.partitions)[0]


@pytest.fixture
def work(tmp_path: Path) -> TokenShard:
    return _work(tmp_path)


def _own(path: Path) -> Path:
    """Give the file its own inode, because a finished run has hard links to it."""
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)
    return path


def _findings(work: TokenShard) -> dict[str, Finding]:
    return find_all(INDEXED_BINS_CHECKS, OpenedTokens.open, None, work)


def _receipt(work: TokenShard) -> Receipt:
    return work.store.require(work.artifact)


def test_a_shard_whose_separator_differs_from_its_recipe_is_reported(work: TokenShard) -> None:
    plan = replace(work.plan, separator_id=EOS - 1)
    told = boundaries_match(work.store.directory(work.artifact), _receipt(work), plan)
    assert_names(told.summary, EOS, EOS - 1)


@pytest.mark.parametrize("options", [{}, {"add_eos": False}, {"max_doc_tokens": None}, {"dtype": "int32"}])
def test_a_good_shard_passes_every_check(tmp_path: Path, options: dict[str, Any]) -> None:
    found = _findings(_work(tmp_path, **options))
    assert set(found) == {check.name for check in INDEXED_BINS_CHECKS}
    assert {name: f.summary for name, f in found.items() if not f.passed} == {}
    # All documents are compared, because the sample is at least as large as this small shard.
    assert found["round_trip"].facts["documents_compared"] == 20


def test_a_range_of_rows_round_trips(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.parquet", make_texts("a", 30))
    blend = declare_pretraining(tmp_path, num_shards=3, blend={"datasets": [{"name": "a", "path": str(path)}]})
    _, _, plan = finish_blend(blend, tmp_path / "out")
    for one in prepare_indexed_bins_shards(blend, LocalArtifacts(tmp_path / "out"), plan, plan.partitions):
        assert all(f.passed for f in _findings(one).values())


def test_a_missing_shard_fails_every_check(work: TokenShard) -> None:
    (work.directory / "receipt.json").unlink()
    assert not any(f.passed for f in _findings(work).values())


def _truncated_bin(work: TokenShard) -> None:
    path = _own(work.directory / "tokens.bin")
    os.truncate(path, path.stat().st_size - 2)


def _old_idx(work: TokenShard) -> None:
    path = _own(work.directory / "tokens.idx")
    path.unlink()
    ends = document_ends.open_ends(work.directory / "document_ends.bin")
    megatron.write_idx(path, np.asarray(ends)[:-1], dtype=work.plan.dtype)


def _wrong_code(work: TokenShard) -> None:
    path = _own(work.directory / "tokens.idx")
    path.write_bytes(path.read_bytes()[:17] + b"\x04" + path.read_bytes()[18:])


def _no_leading_zero(work: TokenShard) -> None:
    path = _own(work.directory / "tokens.idx")
    data = path.read_bytes()
    count = struct.unpack("<Q", data[18:26])[0]
    at = 34 + 12 * count
    path.write_bytes(data[:26] + struct.pack("<Q", count) + data[34:at] + data[at + 8 :])


def _no_idx(work: TokenShard) -> None:
    (work.directory / "tokens.idx").unlink()


@pytest.mark.parametrize("damage", [_truncated_bin, _old_idx, _wrong_code, _no_leading_zero, _no_idx])
def test_an_index_that_does_not_match_the_stream_is_found(
    work: TokenShard, damage: Callable[[TokenShard], None]
) -> None:
    """Megatron opens a truncated bin and, with `mmap=False`, returns uninitialized memory.

    See docs/formats/megatron.md#damage.
    """
    damage(work)
    found = _findings(work)
    assert not found["index_matches_stream"].passed
    assert not found["files_intact"].passed


def _ids(work: TokenShard) -> np.memmap[Any, Any]:
    return np.memmap(_own(work.directory / "tokens.bin"), dtype="<u2", mode="r+")


def test_an_empty_sequence_is_found(work: TokenShard) -> None:
    ends = np.asarray(document_ends.open_ends(work.directory / "document_ends.bin")).copy()
    ends[3] = ends[2]
    for name in ("document_ends.bin", "tokens.idx"):
        (work.directory / name).unlink()
    document_ends.write(work.directory / "document_ends.bin", ends)
    megatron.write_idx(work.directory / "tokens.idx", ends, dtype=work.plan.dtype)
    finding = _findings(work)["index_matches_stream"]
    assert not finding.passed
    assert "1 sequence has no token" in finding.summary


def test_missing_and_duplicate_separators_are_found(work: TokenShard) -> None:
    ends = np.asarray(document_ends.open_ends(work.directory / "document_ends.bin"))
    ids = _ids(work)
    at = int(ends[4]) - 1
    ids[at] = 7
    ids.flush()
    assert_names(_findings(work)["document_boundaries_valid"].summary, "separator")
    ids[at], ids[at - 1] = EOS, EOS
    ids.flush()
    finding = _findings(work)["document_boundaries_valid"]
    assert not finding.passed
    assert "separators" in finding.summary
    assert not finding.warning


@pytest.mark.parametrize(("mode", "doubled"), [("text", 0), ("match", 20)])
def test_a_bos_in_the_text_itself_is_reported(tmp_path: Path, mode: str, doubled: int) -> None:
    begun = [{"text": f"{SEPARATOR}{row['text']}"} for row in make_texts("a", 20)]
    path = write_rows(tmp_path / "begun.jsonl", begun)
    folder = tmp_path / "tokenizer"
    shutil.copytree(SAMPLE / "tokenizer", folder)
    config = json.loads((folder / "tokenizer_config.json").read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"bos_token": SEPARATOR}))
    blend = declare_pretraining(
        tmp_path,
        num_shards=1,
        tokenizer={"path": folder, "engine": "tokenizers"},
        pretrain=OPTIONS | {"add_bos": True, "special_tokens": mode},
        blend={"datasets": [{"name": "a", "path": str(path)}]},
    )
    _, _, plan = finish_blend(blend, tmp_path / "out")
    (work,) = prepare_indexed_bins_shards(blend, LocalArtifacts(tmp_path / "out"), plan, plan.partitions)
    finding = _findings(work)["document_boundaries_valid"]
    assert (finding.passed, finding.warning, finding.facts["repeated_separators"]) == (
        not doubled,
        bool(doubled),
        doubled,
    )


def test_another_id_is_found_by_the_round_trip(work: TokenShard) -> None:
    ids = _ids(work)
    for end in np.asarray(document_ends.open_ends(work.directory / "document_ends.bin")).tolist():
        ids[end - 2] = 9
    ids.flush()
    finding = _findings(work)["round_trip"]
    assert not finding.passed
    assert "a.jsonl: row" in finding.summary
    assert "word" not in finding.summary


def test_an_id_beyond_the_vocabulary_is_found(work: TokenShard) -> None:
    ids = _ids(work)
    ids[3] = TokenizerBundle.load(work.plan.tokenizer).vocab_size
    ids.flush()
    assert not _findings(work)["ids_in_vocabulary"].passed


@pytest.mark.parametrize(
    "change",
    [
        {"rows_in": 22},
        {"documents": 19},
        {"separators": 3},
        {"tokens": 5},
        {"dropped": {"below_min_doc_chars": 2}},
        {"rows_in": 22, "dropped": {"below_min_doc_chars": 1, "bad_json": 1}},
    ],
)
def test_an_unbalanced_ledger_is_found(work: TokenShard, change: dict[str, Any]) -> None:
    receipt = _receipt(work)
    assert receipt.ledger is not None
    assert ledger_balances(work.directory, receipt).passed
    broken = replace(receipt, ledger=replace(receipt.ledger, **change))
    assert not ledger_balances(work.directory, broken).passed


def test_a_changed_source_does_not_round_trip(work: TokenShard, tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", make_texts("b", 21))
    assert not _findings(work)["round_trip"].passed
