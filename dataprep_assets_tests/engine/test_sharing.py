"""Artifacts of other datasets that have the same source files, found by their receipts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dataprep_assets.engine.artifact.spec import ArtifactSpec, Partitions
from dataprep_assets.engine.staleness.rebuild import (
    RemainingRetractions,
    SharingArtifact,
    count_retracted_documents,
    find_remaining_retractions,
    find_sharing_artifacts,
)
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.receipt import Ledger, Receipt, record_files
from dataprep_assets_tests.engine import specs

HELD, OTHER = "a" * 64, "b" * 64


def make_spec(dataset: str, name: str, *keys: str, **more: Any) -> ArtifactSpec:
    """Return an artifact of a dataset, with partitions if there are any."""
    return specs.make_spec(dataset, name, partitions=Partitions.from_keys(keys, "shard") if keys else None, **more)


def write_receipt(
    store: LocalArtifacts,
    made: ArtifactSpec,
    key: str | None,
    sources: Mapping[str, str],
    ledger: bool | Ledger = True,
    retracted: Mapping[str, int] | None = None,
) -> None:
    """Write a receipt of a finished partition."""
    artifact = made.locate_artifact(store, key)
    folder = artifact.directory(store.root)
    folder.mkdir(parents=True)
    (folder / "data").write_bytes(b"1")
    Receipt(
        dataset=artifact.dataset,
        artifact=artifact.name,
        partition=artifact.partition,
        key="0" * 64,
        inputs={},
        files=record_files(folder),
        facts={},
        ledger=ledger if isinstance(ledger, Ledger) else Ledger() if ledger else None,
        sources=tuple(
            {"sha256": file, "dropped": {"retracted": n} if n else {}} for file, n in (retracted or {}).items()
        ),
        measured={},
        recipe={"version": 1, "settings": {}, "sources": dict(sources), "upstream": {}},
    ).write(folder)


def test_shards_of_a_file_are_found_under_any_name_with_their_publications(tmp_path: Path) -> None:
    store = LocalArtifacts(tmp_path)
    chat = make_spec("chat", "packed_sft", "a-0", "a-1", "a-2")
    write_receipt(store, chat, "a-0", {"tokenizer": "t", "somewhere/else.parquet[0:9]": HELD})
    write_receipt(store, chat, "a-1", {"other.jsonl": OTHER})
    bins = make_spec("release", "token_bins", "train-00000")
    mirror = make_spec("release", "snapshot", "train-00000")
    published = make_spec("release", "published_shards", published_to=lambda _: "s3://theirs/release")
    write_receipt(store, bins, "train-00000", {"x.jsonl": HELD})
    write_receipt(store, mirror, "train-00000", {"x.jsonl": HELD}, ledger=False)
    write_receipt(store, published, None, {})
    apart = make_spec("apart", "token_bins", "train-00000")
    write_receipt(store, apart, "train-00000", {"x.jsonl": OTHER})
    every = [([chat], store), ([mirror, bins, published], store), ([apart], store)]
    assert list(find_sharing_artifacts({HELD}, every)) == [
        SharingArtifact(dataset="chat", artifact="packed_sft", partitions=1, noun="shard"),
        SharingArtifact(
            dataset="release", artifact="token_bins", partitions=1, noun="shard", published=("s3://theirs/release",)
        ),
    ]


def test_an_unreadable_dataset_does_not_hide_the_others(tmp_path: Path) -> None:
    store = LocalArtifacts(tmp_path)
    broken, sound = make_spec("broken", "token_bins", "train-00000"), make_spec("sound", "token_bins", "train-00000")
    for made in (broken, sound):
        write_receipt(store, made, "train-00000", {"x.jsonl": HELD})
    receipt = broken.locate_artifact(store, "train-00000").directory(tmp_path) / "receipt.json"
    receipt.unlink()
    receipt.write_text("{")
    found = find_sharing_artifacts({HELD}, [([broken], store), ([sound], store)])
    assert [one.dataset for one in found] == ["sound"]


def test_a_dataset_with_documents_that_another_dropped_is_listed_until_it_drops_as_many(tmp_path: Path) -> None:
    store = LocalArtifacts(tmp_path)
    ours = make_spec("ours", "token_bins", "train-00000", "train-00001")
    # Rows of one file are in two shards, so the counts of both shards are added.
    write_receipt(store, ours, "train-00000", {}, retracted={HELD: 1, OTHER: 0})
    write_receipt(store, ours, "train-00001", {}, retracted={HELD: 1})
    dropped = count_retracted_documents([ours], store)
    assert dropped == {HELD: 2}

    behind = make_spec("behind", "token_bins", "a-0", "a-1")
    write_receipt(store, behind, "a-0", {}, retracted={HELD: 1})
    write_receipt(store, behind, "a-1", {}, retracted={OTHER: 0})
    chat = make_spec("chat", "packed_sft", "c-0")  # a dataset that drops no rows and records no count
    write_receipt(store, chat, "c-0", {"x.jsonl[0:9]": HELD})
    level = make_spec("level", "token_bins", "l-0")
    write_receipt(store, level, "l-0", {}, retracted={HELD: 2, OTHER: 0})
    others = [([one], store) for one in (behind, chat, level)]
    assert list(find_remaining_retractions("ours", dropped, others)) == [
        RemainingRetractions(dataset="behind", artifact="token_bins", partitions=1, noun="shard", retracted_by="ours"),
        RemainingRetractions(dataset="chat", artifact="packed_sft", partitions=1, noun="shard", retracted_by="ours"),
    ]
    assert list(find_remaining_retractions("level", count_retracted_documents([level], store), [([ours], store)])) == []
    assert count_retracted_documents([chat], store) == {}
    assert list(find_remaining_retractions("chat", {}, others)) == []


def test_notes_of_one_file_that_another_dataset_retracted_are_listed(tmp_path: Path) -> None:
    store = LocalArtifacts(tmp_path)
    ours, theirs = (make_spec(name, "packed_cohorts", "1998-01") for name in ("ours", "theirs"))
    write_receipt(store, ours, "1998-01", {"cohort": HELD, "tokenizer": OTHER}, ledger=Ledger(dropped={"retracted": 5}))
    write_receipt(store, theirs, "1998-01", {"cohort": HELD, "tokenizer": OTHER}, ledger=Ledger(dropped={"empty": 5}))
    assert count_retracted_documents([ours], store) == {HELD: 5}
    assert list(find_remaining_retractions("ours", {HELD: 5}, [([theirs], store)])) == [
        RemainingRetractions(
            dataset="theirs", artifact="packed_cohorts", partitions=1, noun="shard", retracted_by="ours"
        )
    ]
