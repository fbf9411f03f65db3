"""Certificates and round trips: an invalid certificate and an id that does not match its text are named."""

from dataclasses import replace
from typing import Any

import numpy as np
import zstandard

from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.stream.reencoding import engine_certified, round_trip
from dataprep_assets.stream.token_shard import ENDS, QUARANTINE, TOKENS
from dataprep_assets.tokenization.certificate import refuse_engine
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.corpus.sample_shards import Sample, Shard, Special
from dataprep_assets_tests.pipelines.corpus.shard_checks import edit, put, with_ledger

# --- engine_certified


def test_a_certificate_for_another_tokenizer_mode_or_version_is_invalid(shard: Shard, sample: Sample) -> None:
    def changed(**changes: Any) -> Finding:
        certificate = {**shard.receipt.facts["certificate"], **changes}
        receipt = replace(shard.receipt, facts={**shard.receipt.facts, "certificate": certificate})
        return engine_certified(receipt, sample.bundle, "text")

    assert changed().passed
    assert_names(changed(tokenizer_digest="0" * 64).summary, "tokenizer", "void")
    assert_names(changed(special_tokens="match").summary, "special-token", "void")
    stale = changed(engine_version="0.0.0").summary
    assert "encoded with fastokens " in stale
    assert_names(stale, "0.0.0")
    assert "compared no document" in changed(compared={}).summary
    assert not engine_certified(shard.receipt, sample.bundle, "match").passed
    assert_names(changed(nonsense=1).summary, "certificate")


def test_another_installed_version_is_a_warning(shard: Shard, sample: Sample) -> None:
    certificate = {**shard.receipt.facts["certificate"], "engine_version": "0.0.1"}
    measured = {"versions": {**shard.receipt.measured["versions"], "fastokens": "0.0.1"}}
    receipt = replace(shard.receipt, facts={**shard.receipt.facts, "certificate": certificate}, measured=measured)
    found = engine_certified(receipt, sample.bundle, "text")
    assert (found.passed, found.warning) == (False, True)
    assert "version of fastokens" in found.summary


def test_an_engine_that_was_refused_must_not_have_encoded(sample: Sample, special: Special) -> None:
    certificate = refuse_engine(sample.bundle, "text", "tokenizers", "asked for").to_json()
    shard = special(["a", "b"], certificate=certificate)
    found = engine_certified(shard.receipt, sample.bundle, "text")
    assert found.passed
    assert found.facts["reference_documents"] == 2
    receipt = with_ledger(shard.receipt, reference_documents=1)
    assert_names(engine_certified(receipt, sample.bundle, "text").summary, 1, 2)


# --- round_trip


def test_a_changed_id_names_file_row_and_offset(sample: Sample, special: Special) -> None:
    shard = special(["first text", "", "third text here", "fourth"], bad_records="drop")
    ends = np.fromfile(shard.directory / ENDS, "<u8")
    edit(shard.directory / TOKENS, "<u2", put(int(ends[1]), 77))
    found = round_trip(shard.directory, shard.receipt, shard.sources, sample.bundle)
    assert "train/lines.jsonl.zst: row 3: document 2 has" in found.summary
    assert_names(found.summary, "token offset", ends[1])


def test_row_numbers_include_dropped_rows(sample: Sample, special: Special) -> None:
    shard = special([b"{bad", "second row", b"", "fourth row"], bad_records="drop")
    edit(shard.directory / TOKENS, "<u2", put(-2, 77))
    found = round_trip(shard.directory, shard.receipt, shard.sources, sample.bundle)
    assert "row 4: document 1" in found.summary


def test_documents_in_another_order_fail(shard: Shard, sample: Sample) -> None:
    # Reverse the order of all files, so that it does not matter which two files the check samples.
    receipt = replace(shard.receipt, sources=tuple(reversed(shard.receipt.sources)))
    found = round_trip(shard.directory, receipt, shard.sources, sample.bundle, samples=64)
    assert not found.passed


def test_a_changed_or_missing_source_is_named(special: Special, sample: Sample) -> None:
    shard = special(["one", "two"])
    [(label, part)] = shard.sources.items()
    part.path.write_bytes(zstandard.compress(b'{"text": "one"}\n'))
    found = round_trip(shard.directory, shard.receipt, shard.sources, sample.bundle)
    defects = [str(row["defect"]) for row in found.table]
    assert_names(defects[0], "1 document", 2)
    assert "expected sha256" in defects[1]
    part.path.write_bytes(part.path.read_bytes()[:-5])
    assert label in round_trip(shard.directory, shard.receipt, shard.sources, sample.bundle).summary
    assert "receipt, but missing" in round_trip(shard.directory, shard.receipt, {}, sample.bundle).summary


def test_a_source_that_gained_several_blocks_is_named(special: Special, sample: Sample) -> None:
    shard = special(["one", "two"])
    [part] = shard.sources.values()
    lines = [b"one", b"two", *[b"more " * 200_000] * 7, *[b"more " * 200] * 6_000]
    part.path.write_bytes(zstandard.compress(b"".join(b'{"text": "%s"}\n' % line for line in lines)))
    found = round_trip(shard.directory, shard.receipt, shard.sources, sample.bundle)
    assert_names(str(found.table[0]["defect"]), "6,009 documents", 2)


def test_a_sample_covers_the_whole_shard_and_only_its_files_are_read(shard: Shard, sample: Sample) -> None:
    found = round_trip(shard.directory, shard.receipt, shard.sources, sample.bundle, samples=1)
    assert len(shard.receipt.sources) > 2
    assert (found.facts["source_files_read"], found.facts["documents_compared"]) == (1, 1)
    found = round_trip(shard.directory, shard.receipt, shard.sources, sample.bundle)
    assert found.facts["documents_compared"] == found.facts["documents"]


def test_every_document_of_every_file_is_compared_if_declared(sample: Sample, special: Special) -> None:
    shard = special([f"text {n}" for n in range(1_000)])
    ends, path = np.fromfile(shard.directory / ENDS, "<u8"), shard.directory / TOKENS
    sound = path.read_bytes()
    for document in (0, 517, 999):
        edit(path, "<u2", put(int(ends[document]) - 2, 77))
        found = round_trip(shard.directory, shard.receipt, shard.sources, sample.bundle, samples=None)
        assert f"document {document} has" in found.summary
        path.write_bytes(sound)
    found = round_trip(shard.directory, shard.receipt, shard.sources, sample.bundle, samples=None)
    assert found.passed
    assert (found.facts["documents_compared"], found.facts["level"]) == (1_000, "every_document")


def test_a_bad_row_at_another_position_than_in_the_quarantine_fails(sample: Sample, special: Special) -> None:
    shard = special(["one", b"{bad", "three"], bad_records="drop")
    path = shard.directory / QUARANTINE
    path.write_bytes(path.read_bytes().replace(b'"row":2', b'"row":3'))
    found = round_trip(shard.directory, shard.receipt, shard.sources, sample.bundle)
    assert_names(found.summary, "1 bad record", "positions")
