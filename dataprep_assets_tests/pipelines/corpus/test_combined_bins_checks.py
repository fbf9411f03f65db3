"""Checks of combined bins: all pass on the train split, and each fails on its own planted faults and names the
position.
"""

import pickle
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.engine.checks.check import Finding, fail_on_errors
from dataprep_assets.formats import flat_bins
from dataprep_assets.integrity.receipt import Receipt, record_files
from dataprep_assets.pipelines.corpus import combined_bins
from dataprep_assets.stream.token_shard import ENDS, TOKENS
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.corpus.sample_shards import Combined, Sample

SEPARATOR = 4094
matches_shards, totals_match = (
    fail_on_errors(combined_bins.check_concatenation),
    fail_on_errors(combined_bins.check_totals),
)
sources_complete, meta_matches = (
    fail_on_errors(combined_bins.check_sources),
    fail_on_errors(combined_bins.check_meta),
)


def poke(path: Path, byte: int, value: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= value
    path.write_bytes(data)


def equal(artifact: Combined, sample: Sample, shards: list[tuple[Path, Receipt]] | None = None) -> Finding:
    return matches_shards(artifact.directory, artifact.receipt, shards or sample.train, split="train")


# --- matches_shards


def test_the_combined_bin_equals_its_shards(combined: Combined, sample: Sample) -> None:
    found = equal(combined, sample)
    assert found.passed
    assert found.facts["shards"] == 2


def test_a_flipped_byte_names_shard_and_byte(copy: Combined, sample: Sample) -> None:
    first = sample.train[0][1].file(TOKENS).bytes
    poke(copy.tokens, first + 99, 1)
    found = equal(copy, sample)
    assert not found.passed
    assert_names(found.summary, first + 99, 99, 1)
    assert "sample/token_bins/train-00001" in found.summary
    assert "the receipt of sample/combined_bins/train" in str(found.table[1]["defect"])


def test_duplicate_lost_and_swapped_shards_fail(copy: Combined, sample: Sample) -> None:
    first, second = sample.train
    whole = copy.tokens.read_bytes()
    assert not equal(copy, sample, [second, first]).passed
    assert "but its 1 shard has" in equal(copy, sample, [first]).summary
    copy.tokens.write_bytes(whole + whole[-second[1].file(TOKENS).bytes :])
    assert f"has {copy.tokens.stat().st_size:,} bytes" in equal(copy, sample).summary


def test_a_truncated_bin_names_the_byte(copy: Combined, sample: Sample) -> None:
    data = copy.tokens.read_bytes()
    copy.tokens.write_bytes(data[:-1])
    assert_names(str(equal(copy, sample).table[1]["defect"]), len(data) - 1)


def test_a_shard_that_contradicts_its_receipt_is_distinguished_from_a_bad_join(
    combined: Combined, sample: Sample
) -> None:
    (directory, receipt), second = sample.train
    forged = replace(
        receipt, files=tuple(replace(f, sha256="0" * 64) if f.path == TOKENS else f for f in receipt.files)
    )
    assert_names(equal(combined, sample, [(directory, forged), second]).summary, "receipt")
    gone = equal(combined, sample, [(directory / "gone", forged), second])
    assert_names(gone.summary, "missing")


def test_document_ends_that_differ_name_the_document(copy: Combined, sample: Sample) -> None:
    ends = np.fromfile(copy.ends, "<u8")
    documents = len(np.fromfile(sample.train[0][0] / ENDS, "<u8"))
    ends[documents + 3] += 1
    ends.tofile(copy.ends)
    assert f"at document {documents + 3} (byte {(documents + 3) * 8})" in equal(copy, sample).summary
    ends[documents + 3] -= 1
    np.append(ends, ends[-1]).tofile(copy.ends)
    assert_names(equal(copy, sample).summary, len(ends) + 1, len(ends))


# --- wrong_totals


def test_the_ledger_is_the_sum_of_the_shards(combined: Combined, sample: Sample) -> None:
    found = totals_match(combined.receipt, sample.train)
    assert found.passed
    assert combined.receipt.ledger is not None
    assert found.facts["tokens"] == combined.receipt.ledger.tokens


def test_a_wrong_total_is_named(combined: Combined, sample: Sample) -> None:
    assert combined.receipt.ledger is not None
    ledger = combined.receipt.ledger
    found = totals_match(
        replace(combined.receipt, ledger=replace(ledger, documents=ledger.documents + 1)), sample.train
    )
    assert_names(found.summary, "documents", ledger.documents + 1, 2, ledger.documents)
    assert not totals_match(combined.receipt, sample.train[:1]).passed
    assert "no ledger" in totals_match(replace(combined.receipt, ledger=None), sample.train).summary


# --- sources_complete
def test_each_split_contains_its_files_once(sample: Sample) -> None:
    for split in ("train", "val", "test"):
        assert sources_complete(sample.receipts(split), sample.entries, split).passed


def test_missing_duplicate_and_reordered_shards_name_their_files(sample: Sample) -> None:
    first, second = sample.receipts()
    lost = sources_complete([first], sample.entries, "train")
    assert f"files are missing: {second.sources[0]['file']}" in lost.summary
    twice = sources_complete([first, second, second], sample.entries, "train")
    line = second.sources[0]
    assert_names(twice.summary, line["file"], "twice")
    swapped = sources_complete([second, first], sample.entries, "train")
    assert_names(swapped.summary, "order")


def test_a_train_file_in_the_validation_split_is_a_leak(sample: Sample) -> None:
    [val] = sample.receipts("val")
    stolen = sample.receipts()[0].sources[0]
    leaked = sources_complete([replace(val, sources=(stolen, *val.sources))], sample.entries, "val")
    assert_names(leaked.summary, stolen["file"], "train", "val")
    renamed = replace(val, sources=({**val.sources[0], "file": stolen["file"]},))
    found = sources_complete([renamed], sample.entries, "val")
    assert f"file is missing: {val.sources[0]['file']}" in found.summary
    assert any(f"{stolen['file']} belongs to split train, not val" in str(row["defect"]) for row in found.table)
    [entry] = [e for e in sample.entries if e.split == "val"]
    copied = [entry._replace(sha256=stolen["sha256"]) if e is entry else e for e in sample.entries]
    same_bytes = replace(val, sources=({**val.sources[0], "sha256": stolen["sha256"]},))
    assert_names(sources_complete([same_bytes], copied, "val").summary, stolen["file"], "train")
    nothing_in_it = replace(same_bytes, sources=({**same_bytes.sources[0], "documents": 0},))
    assert sources_complete([nothing_in_it], copied, "val").passed


def test_a_file_with_other_bytes_or_outside_of_the_manifest_is_named(sample: Sample) -> None:
    [val] = sample.receipts("val")
    changed = replace(val, sources=({**val.sources[0], "sha256": "0" * 64},))
    assert "the manifest lists" in sources_complete([changed], sample.entries, "val").summary
    unknown = replace(val, sources=(*val.sources, {**val.sources[0], "file": "validation/new.jsonl.zst"}))
    assert_names(sources_complete([unknown], sample.entries, "val").summary, "new.jsonl.zst")


def test_a_file_added_later_moves_no_file_of_an_unchanged_shard(sample: Sample) -> None:
    """A receipt keeps the ordinal from its own build, while the manifest has the current ones."""
    later = [e._replace(ordinal=e.ordinal + 1) for e in sample.entries]
    for split in ("train", "val", "test"):
        assert sources_complete(sample.receipts(split), later, split).passed


# --- meta_matches


def test_meta_matches_tokenizer_and_bins(combined: Combined, sample: Sample) -> None:
    assert meta_matches(combined.directory, sample.bundle, SEPARATOR, "uint16").passed


def test_a_pickle_with_other_bytes_fails_without_being_loaded(copy: Combined, sample: Sample) -> None:
    marker, values = copy.directory / "ran", flat_bins.read_meta(copy.directory)

    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (marker,)

    takes_gigabytes = b"]r\xff\xff\xff\x0f."  # this pickle allocates a memo of 268 million entries
    other = pickle.dumps({**values, "dtype": "uint32"})
    for content in (other, pickle.dumps(Bomb()), takes_gigabytes, b"no pickle", b"", bytes(2 << 20)):
        (copy.directory / "meta.pkl").write_bytes(content)
        tracemalloc.start()
        found = meta_matches(copy.directory, sample.bundle, SEPARATOR, "uint16")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.stop()
        assert not found.passed
        assert "meta.pkl" in found.summary
    assert not marker.exists()


def test_wrong_vocabulary_separator_and_dtype_are_named(copy: Combined, sample: Sample) -> None:
    found = meta_matches(copy.directory, sample.bundle, 4095, "uint32")
    assert [str(row["defect"]).split(": ")[1] for row in found.table] == [
        "eos_token_id is 4094, but the bins have 4095",
        "dtype is 'uint16', but the bins have 'uint32'",
    ]
    values = flat_bins.read_meta(copy.directory) | {"vocab_size": 4095}
    for name in ("meta.pkl", "meta.json"):
        (copy.directory / name).unlink()
    flat_bins.write_meta(copy.directory, values)
    found = meta_matches(copy.directory, sample.bundle, SEPARATOR, "uint16")
    assert_names(found.summary, "vocab_size", 4095, 4096)


def test_a_missing_file_is_a_failed_finding(tmp_path: Path, sample: Sample) -> None:
    receipt = Receipt(dataset="d", artifact="a", partition=None, key="0", inputs={}, files=record_files(tmp_path))
    assert not matches_shards(tmp_path, receipt, sample.train, split="train").passed
    assert "meta.json" in meta_matches(tmp_path, sample.bundle, SEPARATOR, "uint16").summary
