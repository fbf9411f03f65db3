"""The difference of two locks by split and source file, by settings, and by artifacts."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from dataprep_assets.engine.lock.difference import LockDifference, compare_locks
from dataprep_assets.engine.lock.lock import (
    Lock,
    LockCounts,
    LockedFile,
    LockEntry,
    encode_lock,
    lock_dataset,
    parse_lock,
)
from dataprep_assets.engine.privacy import Privacy
from dataprep_assets.integrity.receipt import Content
from dataprep_assets_tests.pipelines.corpus.changed_corpus import ChangedCorpus

VAL = "validation/chunk1/example_holdout_0.jsonl.zst"


def add_document(path: Path, text: str) -> None:
    """Append one document to a source file."""
    raw = zstandard.ZstdDecompressor().decompress(path.read_bytes())
    line = json.dumps({"text": text}).encode() + b"\n"
    path.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(raw + line))


def compared(a: Lock, b: Lock) -> LockDifference:
    return compare_locks(a, b, ("a", "b"))


@pytest.fixture
def lock(corpus: ChangedCorpus) -> Lock:
    return lock_dataset(corpus.specs(), corpus.store)


def test_a_lock_does_not_differ_from_itself_however_it_was_read(lock: Lock) -> None:
    found = compared(lock, parse_lock(encode_lock(lock), "x"))
    assert found.is_empty
    assert list(found.lines())[-1] == "no differences: 9 source files, 180 documents, 96,008 tokens"


def test_an_added_document_is_reported_with_its_file_and_its_tokens(corpus: ChangedCorpus, lock: Lock) -> None:
    add_document(corpus.data / VAL, "one more document")
    corpus.run()
    after = lock_dataset(corpus.specs(), corpus.store)
    found = compared(lock, after)
    assert not found.is_empty
    (file,) = found.files
    assert (file.split, file.file, file.kind) == ("val", VAL, "changed")
    assert file.before is not None
    assert file.after is not None
    assert file.after.documents - file.before.documents == 1
    tokens = file.after.tokens - file.before.tokens
    before, now = found.totals["val"]
    assert now[1].tokens - before[1].tokens == tokens > 1
    assert found.totals["train"][0] == found.totals["train"][1]
    assert {"token_bins/val-00000", "combined_bins/val", "nanogpt_bins"} <= set(found.changed)
    assert not {name for name in found.changed if "train" in name}
    text = "\n".join(found.lines())
    assert f"changed  {VAL}: +1 document, +{tokens} tokens" in text
    assert "train:" not in text
    value = json.loads(json.dumps(found.to_json()))
    assert value["same"] is False
    assert value["splits"]["val"]["b"]["documents"] == value["splits"]["val"]["a"]["documents"] + 1
    assert value["files"][0]["file"] == VAL
    assert value["artifacts"]["changed"] == found.changed


def test_added_and_removed_files_are_reported(corpus: ChangedCorpus, lock: Lock) -> None:
    chunk = corpus.data / "train" / "chunk1"
    shutil.copy(chunk / "example_train_0.jsonl.zst", chunk / "example_train_99.jsonl.zst")
    add_document(chunk / "example_train_99.jsonl.zst", "so that it is another file")
    (chunk / "example_train_1.jsonl.zst").unlink()
    (chunk / "example_train_2.jsonl.zst").rename(chunk / "example_train_3.jsonl.zst")
    corpus.run()
    found = compared(lock, lock_dataset(corpus.specs(), corpus.store))
    assert {(one.kind, Path(one.file).name) for one in found.files} == {
        ("added", "example_train_99.jsonl.zst"),
        ("added", "example_train_3.jsonl.zst"),
        ("removed", "example_train_1.jsonl.zst"),
        ("removed", "example_train_2.jsonl.zst"),
    }
    back = compared(lock_dataset(corpus.specs(), corpus.store), lock)
    assert back.totals["train"] == found.totals["train"][::-1]


def test_a_corpus_with_other_shards_has_the_same_documents(corpus: ChangedCorpus, lock: Lock) -> None:
    corpus.run(shards={"count": 2})
    found = compared(lock, lock_dataset(corpus.specs(shards={"count": 2}), corpus.store))
    assert found.files == []
    assert found.totals["train"][0] == found.totals["train"][1]
    assert found.changed["manifest"] == "shards.count was 3, now 2"
    assert found.removed == ["snapshot/train-00002", "token_bins/train-00002"]


def test_a_changed_setting_of_many_shards_is_one_line(corpus: ChangedCorpus, lock: Lock) -> None:
    smaller = {"max_record_bytes": 1 << 20}
    corpus.run(bad_records=smaller)
    found = compared(lock, lock_dataset(corpus.specs(bad_records=smaller), corpus.store))
    assert len(found.changed) == 5, "made by another recipe, with the same bytes"
    assert set(found.changed.values()) == {"bad_records.max_record_bytes was 67108864, now 1048576"}
    assert "  token_bins/test-00000 and 4 more: bad_records.max_record_bytes was 67108864, now 1048576" in list(
        found.lines()
    )


def test_other_library_versions_are_no_difference(lock: Lock) -> None:
    other = {name: replace(one, libraries={**one.libraries, "numpy": "1.0"}) for name, one in lock.artifacts.items()}
    assert compared(lock, replace(lock, artifacts=other)).is_empty


def test_a_lock_with_hidden_names_is_comparable_to_one_with_names(lock: Lock) -> None:
    assert compared(lock, lock.hide_names()).is_empty
    assert compared(lock.hide_names(), lock).is_empty


def make_rows_lock(ranges: Mapping[str, tuple[str, int]]) -> Lock:
    """Return a lock with one shard of rows per range: range → digest and documents."""
    return Lock(
        dataset="blend",
        artifacts={
            f"rl_jsonl/code-{i:05d}": LockEntry(
                key=name,
                content=Content(name),
                files={name: LockedFile(sha256=digest, counts=LockCounts(documents=count))},
            )
            for i, (name, (digest, count)) in enumerate(ranges.items())
        },
    )


def test_rows_of_a_file_are_summed_regardless_of_the_shards() -> None:
    one = make_rows_lock({"a.jsonl[1:5]": ("1", 4), "a.jsonl[5:None]": ("1", 6)})
    other = make_rows_lock({"a.jsonl[1:8]": ("1", 7), "a.jsonl[8:None]": ("1", 3)})
    assert compared(one, other).files == []
    (changed,) = compared(one, make_rows_lock({"a.jsonl[1:8]": ("2", 7), "a.jsonl[8:None]": ("2", 3)})).files
    assert (changed.split, changed.file, changed.kind) == ("code", "a.jsonl", "changed")


def test_a_dataset_without_counted_files_is_compared_by_its_partitions() -> None:
    def months(documents: int) -> Lock:
        counts = {"2011-01": LockCounts(documents=5), "2011-02": LockCounts(documents=documents)}
        entries = {
            f"{kind}/{month}": LockEntry(key=f"{count}", content=Content(f"{count}"), counts=count)
            for kind in ("cohort_shards", "packed_cohorts")
            for month, count in counts.items()
        }
        return Lock(dataset="notes", artifacts=entries)

    found = compared(months(7), months(9))
    kinds = ["cohort_shards", "packed_cohorts"]
    assert [(one.split, one.file, one.kind) for one in found.files] == [(kind, "2011-02", "changed") for kind in kinds]
    assert [side[1].documents for side in found.totals["packed_cohorts"]] == [12, 14]


def test_for_sensitive_data_neither_one_difference_nor_two_show_how_many_documents_were_added(
    corpus: ChangedCorpus, lock: Lock
) -> None:
    add_document(corpus.data / VAL, "one more document")
    corpus.run()
    found = compared(lock, lock_dataset(corpus.specs(), corpus.store))
    cells = Privacy(closed=True, dataset="d")
    text = "\n".join(found.lines(cells))
    assert f"changed  {VAL}: +< 11 documents\n" in text, "and not how many tokens these have"
    assert "(+< 11 −0)" in text
    (before, now) = found.totals["val"]
    counted = text.partition("artifacts that differ")[0]
    for number in (now[1].documents, before[1].tokens, now[1].tokens):
        assert f"{number:,}" not in counted
    value = found.to_json(cells)
    for side in ("a", "b"):
        counts = value["splits"]["val"][side]
        assert counts["files"] == "< 11"
        assert counts["tokens"] not in (before[1].tokens, now[1].tokens)
    assert value["files"][0]["after"] == {**value["files"][0]["before"]}, "to the first digit they are the same"
