"""Checks of token bins: all pass on the sample corpus, and each fails on its own planted faults and names the
position.
"""

from dataclasses import replace

import pytest

from dataprep_assets.engine.checks.check import files_intact, require_ledger
from dataprep_assets.stream import token_bins_checks as proofs
from dataprep_assets.stream.separators import separators_match_documents
from dataprep_assets.stream.token_shard import ENDS, QUARANTINE, TOKENS
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.corpus.sample_shards import Sample, Shard, Special
from dataprep_assets_tests.pipelines.corpus.shard_checks import (
    PAD,
    SEPARATOR,
    check_shard,
    edit,
    find_failing,
    put,
    with_ledger,
)


def test_every_shard_of_the_sample_passes_every_check(sample: Sample) -> None:
    for shard in sample.shards.values():
        assert find_failing(check_shard(shard, sample.bundle)) == {}


def test_empty_documents_bos_wide_ids_and_blank_lines_pass(sample: Sample, special: Special) -> None:
    lines = ["", "one document", "", "", " \n ", "end <|endoftext|> of it", ""]
    for changes in ({}, {"bos_id": PAD}, {"bos_id": SEPARATOR}, {"dtype": "uint32"}):
        shard = special(lines, **changes)
        assert find_failing(check_shard(shard, sample.bundle)) == {}
        assert separators_match_documents(shard.directory, shard.receipt).facts["empty_documents"] == 4


def test_a_shard_without_documents_passes(sample: Sample, special: Special) -> None:
    shard = special([b""])
    assert shard.receipt.ledger is not None
    assert shard.receipt.ledger.documents == 0
    assert find_failing(check_shard(shard, sample.bundle)) == {}


# --- files_intact


def test_a_flipped_byte_is_named_by_file(shard: Shard) -> None:
    edit(shard.directory / TOKENS, "u1", put(1001, 0xFF))
    found = files_intact(shard.directory, shard.receipt)
    assert not found.passed
    assert found.summary.startswith("sample/token_bins/train-00000: tokens.bin: ")


def test_a_missing_and_an_unlisted_file_are_named(shard: Shard) -> None:
    (shard.directory / ENDS).rename(shard.directory / "old.bin")
    found = files_intact(shard.directory, shard.receipt)
    assert "document_ends.bin: missing (and 1 more)" in found.summary
    assert_names(str(found.table[1]["defect"]), "old.bin")


def test_a_missing_bin_fails_every_check_that_reads_it(shard: Shard, sample: Sample) -> None:
    (shard.directory / TOKENS).unlink()
    failed = find_failing(check_shard(shard, sample.bundle))
    assert set(failed) == set(check_shard(shard, sample.bundle)) - {"ledger_balances", "engine_certified"}
    assert all(TOKENS in summary for summary in failed.values())


# --- ledger_balances


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rows_in": 1}, "does not balance: 1 row in"),
        ({"separators": 3}, "has 3 separators, "),
        ({"tokens": 5}, "the sum of `tokens` over the source files is"),
    ],
)
def test_a_ledger_that_does_not_balance_fails(shard: Shard, changes: dict[str, int], said: str) -> None:
    found = proofs.ledger_balances(shard.directory, with_ledger(shard.receipt, **changes))
    assert not found.passed
    assert said in " ".join(str(row["defect"]) for row in found.table)


def test_a_source_file_that_lost_rows_is_named(shard: Shard) -> None:
    first, *rest = shard.receipt.sources
    receipt = replace(shard.receipt, sources=({**first, "documents": first["documents"] - 1}, *rest))
    found = proofs.ledger_balances(shard.directory, receipt)
    rows = first["rows_in"]
    assert_names(found.summary, first["file"], rows, rows - 1)


def test_drops_balance_with_the_quarantine_and_a_missing_line_is_found(sample: Sample, special: Special) -> None:
    shard = special(["good", b"{bad", b'{"text": 7}', "good too"], bad_records="drop")
    assert find_failing(check_shard(shard, sample.bundle)) == {}
    found = proofs.ledger_balances(shard.directory, shard.receipt)
    assert (found.facts["dropped"], found.facts["dropped_bad_json"]) == (2, 1)
    path = shard.directory / QUARANTINE
    kept = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(kept[0])
    found = proofs.ledger_balances(shard.directory, shard.receipt)
    assert "train/lines.jsonl.zst: rejected rows" in found.summary
    path.write_bytes(b"".join(kept) + b'{"file":"elsewhere","reason":"bad_json"}\n')
    assert "has 1 row of elsewhere" in proofs.ledger_balances(shard.directory, shard.receipt).summary
    path.write_bytes(b"".join(kept) + b"{\n")
    assert "line 3: invalid quarantined row" in proofs.ledger_balances(shard.directory, shard.receipt).summary


# --- size_matches


def test_another_dtype_than_in_the_recipe_fails(shard: Shard) -> None:
    """All files and facts are consistent with it; only the recipe shows the difference."""
    assert proofs.size_matches(shard.directory, shard.receipt, "uint16").passed
    other = proofs.size_matches(shard.directory, shard.receipt, "uint32")
    assert not other.passed
    assert_names(other.summary, "uint16", "uint32")


def test_truncated_bins_and_ends_fail(shard: Shard) -> None:
    path = shard.directory / TOKENS
    path.write_bytes(path.read_bytes()[:-3])
    found = proofs.size_matches(shard.directory, shard.receipt)
    assert f"{TOKENS} has {path.stat().st_size:,} bytes" in found.summary
    edit(shard.directory / ENDS, "<u8", lambda ends: ends[:-1])
    defects = [str(row["defect"]) for row in proofs.size_matches(shard.directory, shard.receipt).table]
    assert len(defects) == 3
    assert_names(defects[2], "last")


def test_ends_that_decrease_name_the_document(shard: Shard) -> None:
    edit(shard.directory / ENDS, "<u8", put(5, 1))
    assert_names(proofs.size_matches(shard.directory, shard.receipt).summary, "document 5", 1)


# --- ids_in_vocabulary


def test_an_id_outside_the_vocabulary_is_named_by_its_offset(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "BLOCK", 1000)
    edit(shard.directory / TOKENS, "<u2", put(12_345, 4096))
    edit(shard.directory / TOKENS, "<u2", put(20_000, 65_535))
    found = proofs.ids_in_vocabulary(shard.directory, shard.receipt, 4096)
    assert_names(found.summary, 4096, 12345, "tokens.bin", 2)


def test_a_range_that_differs_from_the_ledger_and_a_dtype_that_is_too_small_fail(shard: Shard) -> None:
    found = proofs.ids_in_vocabulary(shard.directory, with_ledger(shard.receipt, max_id=17), 4096)
    assert f"has {require_ledger(shard.receipt).min_id} to 17" in found.summary
    assert proofs.ids_in_vocabulary(shard.directory, shard.receipt, 65_536).passed
    found = proofs.ids_in_vocabulary(shard.directory, shard.receipt, 65_537)
    assert_names(found.summary, "uint16", 65537)
