"""The lock of a folder, where only receipts tell what is planned."""

import shutil
from pathlib import Path

import pytest

from dataprep_assets.errors import ConfigError, IntegrityError, MissingArtifactError
from dataprep_assets.graph.lock import lock_dataset, lock_of_receipts
from dataprep_assets.graph.lock_difference import difference
from dataprep_assets.integrity.verify import receipts_below
from dataprep_assets_tests.faults.edits import flip_byte
from dataprep_assets_tests.pipelines.corpus.changed_corpus import ChangedCorpus


def test_shards_that_are_in_no_plan_any_more_are_left_out_and_told(corpus: ChangedCorpus) -> None:
    corpus.run(shards={"count": 2})
    found = lock_of_receipts(receipts_below(corpus.root), "root")
    assert found.obsolete == {"snapshot/train-00002", "token_bins/train-00002"}
    planned = lock_dataset(corpus.specs(shards={"count": 2}), corpus.store)
    assert found.artifacts.keys() - planned.artifacts.keys() == found.obsolete
    compared = difference(planned, found, ("lock", "root"))
    assert compared.is_none
    assert compared.obsolete == sorted(found.obsolete)


def test_of_several_datasets_one_has_to_be_named(corpus: ChangedCorpus, tmp_path: Path) -> None:
    corpus.run(dataset="other", splits={"val": ["validation/**"]}, views=[])
    receipts = list(receipts_below(corpus.root))
    with pytest.raises(ConfigError, match=r"root: has several datasets, other, sample_corpus: name one"):
        lock_of_receipts(receipts, "root")
    assert lock_of_receipts(receipts, "root", "other").dataset == "other"
    with pytest.raises(MissingArtifactError, match=r"root: no artifact of third is there; it has other"):
        lock_of_receipts(receipts, "root", "third")
    with pytest.raises(MissingArtifactError, match="no finished artifact is there"):
        lock_of_receipts(receipts_below(tmp_path / "nothing"), "root")


def test_a_second_copy_is_an_artifact_of_its_own_or_refused(corpus: ChangedCorpus) -> None:
    made = corpus.root / "sample_corpus"
    before = lock_of_receipts(receipts_below(corpus.root), "root")
    shutil.copytree(made / "nanogpt_bins", made / "nanogpt_old")
    shutil.copytree(made / "token_bins" / "val-00000", made / "token_bins" / "val-00007")
    found = lock_of_receipts(receipts_below(corpus.root), "root")
    assert found.artifacts.keys() - before.artifacts.keys() == {"nanogpt_old", "token_bins/val-00007"}
    assert found.obsolete == frozenset()
    shutil.copytree(made / "manifest", made / "old" / "manifest")
    with pytest.raises(ConfigError, match="root: has sample_corpus/manifest twice"):
        lock_of_receipts(receipts_below(corpus.root), "root")


def test_a_damaged_receipt_is_told(corpus: ChangedCorpus) -> None:
    flip_byte(corpus.root / "sample_corpus/manifest/receipt.json")
    with pytest.raises(IntegrityError, match=r"manifest/receipt\.json"):
        lock_of_receipts(receipts_below(corpus.root), "root")
