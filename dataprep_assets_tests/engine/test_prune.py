"""Prune removes exactly the obsolete artifacts: during a run, after a kill, and with a damaged plan."""

import shutil
from pathlib import Path

import pytest

from dataprep_assets.engine.staleness.status import find_unplanned_artifacts, list_unplanned, prune
from dataprep_assets.errors import IntegrityError
from dataprep_assets.integrity.commit import open_staging
from dataprep_assets_tests.faults.edits import flip_byte
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.corpus.changed_corpus import ChangedCorpus
from dataprep_assets_tests.pipelines.corpus.pipeline import data_files

FEWER = {"shards": {"count": 1}}
LEFT = [f"sample_corpus/{name}/train-0000{index}" for name in ("snapshot", "token_bins") for index in (1, 2)]


@pytest.fixture
def fewer(corpus: ChangedCorpus) -> ChangedCorpus:
    """Return a corpus whose train split had three shards and now has one."""
    assert corpus.run(**FEWER).failed == {}
    return corpus


def files(root: Path) -> set[str]:
    return {name for name in data_files(root) if "/.staging/" not in name and "/.findings/" not in name}


def test_exactly_the_obsolete_artifacts_are_removed(fewer: ChangedCorpus) -> None:
    specs, store = fewer.specs(**FEWER), fewer.store
    found = list_unplanned(specs, store)
    assert [str(one.artifact) for one in found] == LEFT
    assert all(one.bytes == store.require(one.artifact).total_bytes for one in found)
    before = files(fewer.root)
    assert {str(artifact): gone for artifact, gone in prune(specs, store)} == dict.fromkeys(LEFT, True)
    assert before - files(fewer.root) == {name for name in before if name.startswith(tuple(f"{one}/" for one in LEFT))}
    assert files(fewer.root) <= before
    assert list(find_unplanned_artifacts(specs, store)) == []
    assert fewer.stale(**FEWER) == []
    assert list(prune(specs, store)) == []


def test_leftovers_of_a_killed_build_are_listed_as_incomplete_and_removed(fewer: ChangedCorpus) -> None:
    (fewer.root / LEFT[-1] / "receipt.json").unlink()
    found = {str(one.artifact): one.bytes for one in list_unplanned(fewer.specs(**FEWER), fewer.store)}
    assert found.keys() == set(LEFT)
    assert found[LEFT[-1]] is None
    assert all(gone for _, gone in prune(fewer.specs(**FEWER), fewer.store))
    assert not (fewer.root / LEFT[-1]).exists()


def test_artifacts_that_a_run_is_building_stay(fewer: ChangedCorpus) -> None:
    with open_staging(fewer.root / LEFT[-1], "another key"):
        done = {str(artifact): gone for artifact, gone in prune(fewer.specs(**FEWER), fewer.store)}
    assert done == {**dict.fromkeys(LEFT, True), LEFT[-1]: False}
    assert [str(artifact) for artifact in find_unplanned_artifacts(fewer.specs(**FEWER), fewer.store)] == [LEFT[-1]]


def test_nothing_is_removed_while_a_run_builds_the_plan(fewer: ChangedCorpus) -> None:
    with (
        open_staging(fewer.root / "sample_corpus" / "manifest", "another key"),
        raises(IntegrityError, "sample_corpus/manifest", "run"),
    ):
        list(prune(fewer.specs(**FEWER), fewer.store))
    assert [str(one.artifact) for one in list_unplanned(fewer.specs(**FEWER), fewer.store)] == LEFT


def test_nothing_is_removed_with_a_damaged_plan(fewer: ChangedCorpus) -> None:
    """If a flipped bit deletes a shard from the plan, that shard must not count as obsolete."""
    flip_byte(fewer.root / "sample_corpus" / "manifest" / "manifest.jsonl")
    before = files(fewer.root)
    with raises(IntegrityError, "damaged"):
        list(prune(fewer.specs(**FEWER), fewer.store))
    assert files(fewer.root) == before


def test_a_split_that_is_no_longer_declared_is_removed_with_its_combined_bins(corpus: ChangedCorpus) -> None:
    splits = {"splits": {"train": ["train/**"], "val": ["validation/**"]}}
    shutil.rmtree(corpus.data / "test")
    assert corpus.run(**splits).failed == {}
    assert {
        str(artifact).removeprefix("sample_corpus/")
        for artifact in find_unplanned_artifacts(corpus.specs(**splits), corpus.store)
    } == {
        "snapshot/test-00000",
        "token_bins/test-00000",
        "combined_bins/test",
    }
    assert all(gone for _, gone in prune(corpus.specs(**splits), corpus.store))
    assert corpus.stale(**splits) == []
