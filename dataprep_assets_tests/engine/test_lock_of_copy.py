"""The lock of a folder in which only receipts state which artifacts are planned."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dataprep_assets.engine.lock.difference import compare_locks
from dataprep_assets.engine.lock.lock import build_lock, lock_dataset
from dataprep_assets.errors import ConfigError, IntegrityError, MissingArtifactError
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.integrity.verify import read_receipts_below
from dataprep_assets_tests.faults.edits import flip_byte
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.corpus.changed_corpus import ChangedCorpus

EMPTY: dict[str, Any] = {"dataset": "notes", "key": "k", "inputs": {}, "files": ()}


def test_obsolete_shards_are_left_out_and_reported(corpus: ChangedCorpus) -> None:
    corpus.run(shards={"count": 2})
    found = build_lock(read_receipts_below(corpus.root), "root")
    assert found.obsolete == {"snapshot/train-00002", "token_bins/train-00002"}
    planned = lock_dataset(corpus.specs(shards={"count": 2}), corpus.store)
    assert found.artifacts.keys() - planned.artifacts.keys() == found.obsolete
    compared = compare_locks(planned, found, ("lock", "root"))
    assert compared.is_empty
    assert compared.obsolete == sorted(found.obsolete)


def test_one_of_several_datasets_must_be_named(corpus: ChangedCorpus, tmp_path: Path) -> None:
    corpus.run(dataset="other", splits={"val": ["validation/**"]}, views=[])
    receipts = list(read_receipts_below(corpus.root))
    with raises(ConfigError, "root", "other, sample_corpus"):
        build_lock(receipts, "root")
    assert build_lock(receipts, "root", "other").dataset == "other"
    with raises(MissingArtifactError, "root", "third", "other"):
        build_lock(receipts, "root", "third")
    with raises(MissingArtifactError):
        build_lock(read_receipts_below(tmp_path / "nothing"), "root")


def test_a_second_copy_is_its_own_artifact_or_refused(corpus: ChangedCorpus) -> None:
    made = corpus.root / "sample_corpus"
    before = build_lock(read_receipts_below(corpus.root), "root")
    shutil.copytree(made / "nanogpt_bins", made / "nanogpt_old")
    shutil.copytree(made / "token_bins" / "val-00000", made / "token_bins" / "val-00007")
    found = build_lock(read_receipts_below(corpus.root), "root")
    assert found.artifacts.keys() - before.artifacts.keys() == {"nanogpt_old", "token_bins/val-00007"}
    assert found.obsolete == frozenset()
    shutil.copytree(made / "manifest", made / "old" / "manifest")
    with raises(ConfigError, "root", "sample_corpus/manifest"):
        build_lock(read_receipts_below(corpus.root), "root")


def test_a_damaged_receipt_is_reported(corpus: ChangedCorpus) -> None:
    flip_byte(corpus.root / "sample_corpus/manifest/receipt.json")
    with raises(IntegrityError, "manifest/receipt.json"):
        build_lock(read_receipts_below(corpus.root), "root")


def test_a_month_of_another_year_that_is_no_longer_planned_is_obsolete() -> None:
    def receipt(name: str, upstream: Sequence[str] = (), planned: Sequence[str] = ()) -> tuple[str, Receipt]:
        artifact, _, partition = name.partition("/")
        contents = {of: Receipt(**{**EMPTY, "artifact": of, "partition": None}).content for of in upstream}
        facts = {"planned": planned} if planned else {}
        own = {
            "artifact": artifact,
            "partition": partition or None,
            "recipe": {"version": 1, "settings": {}, "sources": {}, "upstream": contents},
            "facts": facts,
        }
        return name, Receipt(**{**EMPTY, **own})

    months = ["2011-01", "2011-02", "2012-01"]
    kinds = ["cohort_shards", "data_card", "packed_cohorts", "tfds_dir"]
    found = build_lock(
        [
            *(receipt(f"packed_cohorts/{month}") for month in months),
            *(receipt(f"cohort_shards/{month}", [f"packed_cohorts/{month}"]) for month in months),
            receipt("tfds_dir", [f"cohort_shards/{month}" for month in months[:2]]),
            receipt("data_card", planned=kinds),
        ],
        "root",
    )
    assert found.obsolete == {"cohort_shards/2012-01", "packed_cohorts/2012-01"}
