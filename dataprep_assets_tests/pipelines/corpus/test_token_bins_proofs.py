"""Token-bin proofs: all pass on the sample corpus, and each fails on its own planted faults, naming the place."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from numpy.typing import NDArray

from dataprep_assets.graph.finding import Finding, files_intact
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus import token_bins_proofs as proofs
from dataprep_assets.pipelines.corpus.token_shard import ENDS, QUARANTINE, TOKENS
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import refused_outright
from dataprep_assets_tests.pipelines.corpus.sample_shards import Sample, Shard, Special

SEPARATOR, PAD = 4094, 4095


def prove_all(shard: Shard, bundle: TokenizerBundle, mode: str = "text") -> dict[str, Finding]:
    directory, receipt = shard.directory, shard.receipt
    dtype = receipt.facts["dtype"]
    return {
        "files_intact": files_intact(directory, receipt),
        "ledger_balances": proofs.ledger_balances(directory, receipt),
        "size_matches": proofs.size_matches(directory, receipt),
        "ids_in_vocabulary": proofs.ids_in_vocabulary(directory, receipt, bundle.vocab_size),
        "separators_match_documents": proofs.separators_match_documents(directory, receipt),
        "certificate_valid": proofs.certificate_valid(receipt, bundle, mode),  # type: ignore[arg-type]
        "round_trip": proofs.round_trip(directory, receipt, shard.sources, bundle),
        "eye_test": proofs.eye_test(directory / TOKENS, directory / ENDS, dtype, bundle, seed=1),
    }


def failing(findings: dict[str, Finding]) -> dict[str, str]:
    return {name: f.summary for name, f in findings.items() if not f.passed}


def edit(path: Path, dtype: str, change: Callable[[NDArray[Any]], NDArray[Any] | None]) -> None:
    """Rewrite a file of numbers, changed in place or replaced."""
    values = np.fromfile(path, dtype)
    changed = change(values)
    (values if changed is None else changed).astype(dtype).tofile(path)


def put(offset: int, value: int) -> Callable[[NDArray[Any]], None]:
    """An edit that sets one number."""

    def change(values: NDArray[Any]) -> None:
        values[offset] = value

    return change


def with_ledger(receipt: Receipt, **changes: Any) -> Receipt:
    assert receipt.ledger is not None
    return replace(receipt, ledger=replace(receipt.ledger, **changes))


@pytest.fixture
def shard(sample: Sample, tmp_path: Path) -> Shard:
    """A shard that the test may damage."""
    return sample.shards["train-00000"].copied(tmp_path)


def test_every_shard_of_the_sample_passes_every_proof(sample: Sample) -> None:
    for shard in sample.shards.values():
        assert failing(prove_all(shard, sample.bundle)) == {}


def test_empty_documents_bos_wide_ids_and_blank_lines_pass(sample: Sample, special: Special) -> None:
    lines = ["", "one document", "", "", " \n ", "end <|endoftext|> of it", ""]
    for changes in ({}, {"bos_id": PAD}, {"bos_id": SEPARATOR}, {"dtype": "uint32"}):
        shard = special(lines, **changes)
        assert failing(prove_all(shard, sample.bundle)) == {}
        assert proofs.separators_match_documents(shard.directory, shard.receipt).facts["empty_documents"] == 4


def test_a_shard_of_no_document_passes(sample: Sample, special: Special) -> None:
    shard = special([b""])
    assert shard.receipt.ledger is not None
    assert shard.receipt.ledger.documents == 0
    assert failing(prove_all(shard, sample.bundle)) == {}


# --- files_intact


def test_a_flipped_byte_is_named_by_file(shard: Shard) -> None:
    edit(shard.directory / TOKENS, "u1", put(1001, 0xFF))
    found = files_intact(shard.directory, shard.receipt)
    assert not found.passed
    assert found.summary.startswith("sample/token_bins/train-00000: tokens.bin: sha256")


def test_a_missing_and_an_unlisted_file_are_named(shard: Shard) -> None:
    (shard.directory / ENDS).rename(shard.directory / "old.bin")
    found = files_intact(shard.directory, shard.receipt)
    assert "document_ends.bin: missing (and 1 more)" in found.summary
    assert "old.bin: not in the receipt" in str(found.table[1]["defect"])


def test_a_missing_bin_is_a_failed_finding_of_every_reader(shard: Shard, sample: Sample) -> None:
    (shard.directory / TOKENS).unlink()
    failed = failing(prove_all(shard, sample.bundle))
    assert set(failed) == set(prove_all(shard, sample.bundle)) - {"ledger_balances", "certificate_valid"}
    assert all(TOKENS in summary for summary in failed.values())


# --- ledger_balances


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rows_in": 1}, "does not balance: 1 rows in"),
        ({"separators": 3}, "has 3 separators for"),
        ({"tokens": 5}, "tokens of the source files sum to"),
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
    assert f"source file {first['file']}: {rows} rows in, but {rows - 1} documents" in found.summary


def test_drops_balance_with_the_quarantine_and_a_lost_line_is_missed(sample: Sample, special: Special) -> None:
    shard = special(["good", b"{bad", b'{"text": 7}', "good too"], bad_records="drop")
    assert failing(prove_all(shard, sample.bundle)) == {}
    found = proofs.ledger_balances(shard.directory, shard.receipt)
    assert (found.facts["dropped"], found.facts["dropped_bad_json"]) == (2, 1)
    path = shard.directory / QUARANTINE
    kept = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(kept[0])
    found = proofs.ledger_balances(shard.directory, shard.receipt)
    assert "train/lines.jsonl.zst: dropped" in found.summary
    path.write_bytes(b"".join(kept) + b'{"file":"elsewhere","reason":"bad_json"}\n')
    assert "holds 1 rows of elsewhere" in proofs.ledger_balances(shard.directory, shard.receipt).summary
    path.write_bytes(b"".join(kept) + b"{\n")
    assert "line 3 is not a quarantined row" in proofs.ledger_balances(shard.directory, shard.receipt).summary


# --- size_matches


def test_a_cut_bin_and_cut_ends_fail(shard: Shard) -> None:
    path = shard.directory / TOKENS
    path.write_bytes(path.read_bytes()[:-3])
    found = proofs.size_matches(shard.directory, shard.receipt)
    assert f"{TOKENS} has {path.stat().st_size} bytes" in found.summary
    edit(shard.directory / ENDS, "<u8", lambda ends: ends[:-1])
    defects = [str(row["defect"]) for row in proofs.size_matches(shard.directory, shard.receipt).table]
    assert len(defects) == 3
    assert "the last document ends at token" in defects[2]


def test_ends_that_decrease_name_the_document(shard: Shard) -> None:
    edit(shard.directory / ENDS, "<u8", put(5, 1))
    assert "document 5 ends at token 1," in proofs.size_matches(shard.directory, shard.receipt).summary


# --- ids_in_vocabulary


def test_an_id_outside_the_vocabulary_is_named_by_its_offset(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "BLOCK", 1000)
    edit(shard.directory / TOKENS, "<u2", put(12_345, 4096))
    edit(shard.directory / TOKENS, "<u2", put(20_000, 65_535))
    found = proofs.ids_in_vocabulary(shard.directory, shard.receipt, 4096)
    assert "id 4096 at token offset 12345 of tokens.bin is not below 4096; 2 ids are not" in found.summary


def test_a_range_other_than_the_ledgers_and_a_dtype_too_narrow_fail(shard: Shard) -> None:
    found = proofs.ids_in_vocabulary(shard.directory, with_ledger(shard.receipt, max_id=17), 4096)
    assert "the ledger says [" in found.summary
    assert proofs.ids_in_vocabulary(shard.directory, shard.receipt, 65_536).passed
    found = proofs.ids_in_vocabulary(shard.directory, shard.receipt, 65_537)
    assert "uint16 cannot hold a vocabulary of 65537" in found.summary


# --- separators_match_documents


def test_a_lost_separator_names_its_document(shard: Shard) -> None:
    ends = np.fromfile(shard.directory / ENDS, "<u8")
    edit(shard.directory / TOKENS, "<u2", put(int(ends[7]) - 1, 5))
    found = proofs.separators_match_documents(shard.directory, shard.receipt)
    assert f"document 7 (from token offset {ends[6]}) does not end with separator {SEPARATOR}" in found.summary


def test_a_stray_separator_fails_the_count(shard: Shard) -> None:
    ends = np.fromfile(shard.directory / ENDS, "<u8")
    length = np.diff(ends)
    document = int(np.flatnonzero(length > 10)[0]) + 1
    edit(shard.directory / TOKENS, "<u2", put(int(ends[document]) - 5, SEPARATOR))
    found = proofs.separators_match_documents(shard.directory, shard.receipt)
    assert f"holds {len(ends) + 1} separators (id {SEPARATOR}), expected {len(ends)}" in found.summary


@pytest.mark.parametrize("block", [1 << 20, 7])
def test_a_doubled_separator_names_both_offsets(
    shard: Shard, special: Special, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(proofs, "BLOCK", block)
    shard = special(["", "", "some words of one document", ""], special_tokens="match")
    assert proofs.separators_match_documents(shard.directory, shard.receipt).passed
    end = int(np.fromfile(shard.directory / ENDS, "<u8")[2])
    edit(shard.directory / TOKENS, "<u2", put(end - 2, SEPARATOR))
    receipt = with_ledger(shard.receipt, literal_separators=1)
    found = proofs.separators_match_documents(shard.directory, receipt)
    assert f"doubled separator (id {SEPARATOR}) at token offsets {end - 2} and {end - 1}, document 2" in found.summary
    assert found.facts["doubled"] == 1
    assert not found.warning


def test_text_that_ends_with_its_own_separator_is_a_warning(sample: Sample, special: Special) -> None:
    shard = special(["rendered by a template<|endoftext|>", "plain"], special_tokens="match")
    found = proofs.separators_match_documents(shard.directory, shard.receipt)
    assert not found.passed
    assert found.warning
    assert "document 0" in found.summary
    assert failing(prove_all(shard, sample.bundle, "match")).keys() == {"separators_match_documents"}


def test_a_missing_and_a_doubled_bos_name_their_document(special: Special) -> None:
    shard = special(["first document", "second document"], bos_id=PAD)
    start = int(np.fromfile(shard.directory / ENDS, "<u8")[0])
    edit(shard.directory / TOKENS, "<u2", put(start + 1, PAD))
    found = proofs.separators_match_documents(shard.directory, shard.receipt)
    assert f"doubled BOS (id {PAD}) at token offsets {start} and {start + 1}, document 1" in found.summary
    edit(shard.directory / TOKENS, "<u2", put(start, 5))
    found = proofs.separators_match_documents(shard.directory, shard.receipt)
    assert f"document 1 (from token offset {start}) does not start with BOS {PAD}" in found.summary


# --- certificate_valid


def test_a_certificate_for_another_tokenizer_mode_or_version_is_void(shard: Shard, sample: Sample) -> None:
    def changed(**changes: Any) -> Finding:
        certificate = {**shard.receipt.facts["certificate"], **changes}
        receipt = replace(shard.receipt, facts={**shard.receipt.facts, "certificate": certificate})
        return proofs.certificate_valid(receipt, sample.bundle, "text")

    assert changed().passed
    assert "the certificate is void: tokenizer" in changed(tokenizer_digest="0" * 64).summary
    assert "the certificate is void: special-token mode" in changed(special_tokens="match").summary
    assert "was encoded with fastokens" in changed(engine_version="0.0.0").summary
    assert "compared no document" in changed(compared={}).summary
    assert not proofs.certificate_valid(shard.receipt, sample.bundle, "match").passed
    assert "holds no engine certificate" in changed(nonsense=1).summary


def test_another_version_installed_here_is_a_warning(shard: Shard, sample: Sample) -> None:
    certificate = {**shard.receipt.facts["certificate"], "engine_version": "0.0.1"}
    measured = {"versions": {**shard.receipt.measured["versions"], "fastokens": "0.0.1"}}
    receipt = replace(shard.receipt, facts={**shard.receipt.facts, "certificate": certificate}, measured=measured)
    found = proofs.certificate_valid(receipt, sample.bundle, "text")
    assert (found.passed, found.warning) == (False, True)
    assert "version of fastokens" in found.summary


def test_an_engine_refused_outright_must_not_have_encoded(sample: Sample, special: Special) -> None:
    certificate = refused_outright(sample.bundle, "text", "tokenizers", "asked for").to_json()
    shard = special(["a", "b"], certificate=certificate)
    found = proofs.certificate_valid(shard.receipt, sample.bundle, "text")
    assert found.passed
    assert found.facts["reference_documents"] == 2
    receipt = with_ledger(shard.receipt, reference_documents=1)
    assert "encoded only 1 of 2 documents" in proofs.certificate_valid(receipt, sample.bundle, "text").summary


# --- round_trip


def test_a_changed_id_names_file_row_and_offset(sample: Sample, special: Special) -> None:
    shard = special(["first text", "", "third text here", "fourth"], bad_records="drop")
    ends = np.fromfile(shard.directory / ENDS, "<u8")
    edit(shard.directory / TOKENS, "<u2", put(int(ends[1]), 77))
    found = proofs.round_trip(shard.directory, shard.receipt, shard.sources, sample.bundle)
    assert "train/lines.jsonl.zst: row 3: document 2 has" in found.summary
    assert f"part at token offset {ends[1]}." in found.summary


def test_rows_count_what_was_dropped_before_them(sample: Sample, special: Special) -> None:
    shard = special([b"{bad", "second row", b"", "fourth row"], bad_records="drop")
    edit(shard.directory / TOKENS, "<u2", put(-2, 77))
    found = proofs.round_trip(shard.directory, shard.receipt, shard.sources, sample.bundle)
    assert "row 4: document 1" in found.summary


def test_documents_in_another_order_fail(shard: Shard, sample: Sample) -> None:
    # all files change places, so it does not matter which two the proof draws
    receipt = replace(shard.receipt, sources=tuple(reversed(shard.receipt.sources)))
    found = proofs.round_trip(shard.directory, receipt, shard.sources, sample.bundle, samples=64)
    assert not found.passed


def test_a_source_that_changed_or_vanished_is_named(special: Special, sample: Sample) -> None:
    shard = special(["one", "two"])
    [(label, part)] = shard.sources.items()
    part.path.write_bytes(zstandard.compress(b'{"text": "one"}\n'))
    found = proofs.round_trip(shard.directory, shard.receipt, shard.sources, sample.bundle)
    defects = [str(row["defect"]) for row in found.table]
    assert "holds 1 documents now, the receipt says 2" in defects[0]
    assert "sha256 of the file is" in defects[1]
    part.path.write_bytes(part.path.read_bytes()[:-5])
    assert label in proofs.round_trip(shard.directory, shard.receipt, shard.sources, sample.bundle).summary
    assert "not among those given" in proofs.round_trip(shard.directory, shard.receipt, {}, sample.bundle).summary


def test_at_most_two_source_files_are_read(shard: Shard, sample: Sample) -> None:
    found = proofs.round_trip(shard.directory, shard.receipt, shard.sources, sample.bundle, samples=5)
    assert len(shard.receipt.sources) > 2
    assert found.facts["source_files_read"] == 2
    assert found.facts["documents_compared"] == 6


# --- eye_test


def look(shard: Shard, sample: Sample, dtype: str = "uint16", **options: Any) -> Finding:
    return proofs.eye_test(shard.directory / TOKENS, shard.directory / ENDS, dtype, sample.bundle, seed=1, **options)


def test_windows_show_text_unless_it_is_sensitive(shard: Shard, sample: Sample) -> None:
    found = look(shard, sample)
    assert found.passed
    assert len(found.table) == 6
    assert found.table[0]["offset"] == 0
    assert all(len(str(row["text"])) <= 200 for row in found.table)
    assert all("text" not in row and row["bits_per_token"] for row in look(shard, sample, sensitive=True).table)


def test_a_hole_between_the_windows_is_found(shard: Shard, sample: Sample) -> None:
    def hole(tokens: NDArray[Any]) -> None:
        tokens[9_001 : 9_001 + 600] = 0

    edit(shard.directory / TOKENS, "<u2", hole)
    found = look(shard, sample, windows=1)
    assert "600 times id 0 in a row from token offset 9001" in found.summary
    assert not found.warning


def test_a_run_of_one_id_in_one_window_is_a_warning(shard: Shard, sample: Sample) -> None:
    def run(tokens: NDArray[Any]) -> None:
        tokens[100:800] = 300

    edit(shard.directory / TOKENS, "<u2", run)
    found = look(shard, sample)
    assert "window at token offset 0 (document 0): one id 700 times in a row" in found.summary
    assert found.warning


def test_another_dtype_fails_in_both_directions(sample: Sample, shard: Shard, special: Special) -> None:
    found = look(shard, sample, "uint32")
    assert not found.passed
    assert "ids are not below 4096" in found.summary
    tokens = np.fromfile(shard.directory / TOKENS, "<u2")
    tokens.astype("<u4").tofile(shard.directory / TOKENS)
    found = look(shard, sample)
    assert "100% of every other id are the same one, as in ids of another width" in found.summary
    assert not found.warning


@pytest.mark.parametrize("shift", [1, 2, 3])
def test_shifted_bytes_fail(shard: Shard, sample: Sample, shift: int) -> None:
    path = shard.directory / TOKENS
    data = np.fromfile(path, "<u2").astype("<u4").tobytes()
    path.write_bytes(bytes(shift) + data[:-shift])
    assert not look(shard, sample, "uint32").passed


def test_noise_and_monotony_fail(shard: Shard, sample: Sample) -> None:
    rng = np.random.default_rng(0)
    edit(shard.directory / TOKENS, "<u2", lambda t: rng.integers(0, 4096, len(t)))
    assert "noise over the vocabulary has" in look(shard, sample).summary
    edit(shard.directory / TOKENS, "<u2", lambda t: np.arange(len(t)) % 4 + 300)
    found = look(shard, sample)
    assert "2.0 bits per token" in found.summary
    assert not found.warning


def test_bytes_that_are_no_characters_fail(shard: Shard, sample: Sample) -> None:
    [byte] = [i for i in range(300) if sample.bundle.decode([i, i]) == "\ufffd\ufffd"][:1]
    edit(shard.directory / TOKENS, "<u2", lambda t: np.where(np.arange(len(t)) % 4, byte, t))
    assert "of the decoded characters are printable" in look(shard, sample, windows=1).summary
