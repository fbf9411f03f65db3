"""A lock contains everything that decides a dataset's bytes, equal on every machine, and nothing about the machine."""

import shutil
import socket
from pathlib import Path

import pytest

from dataprep_assets.engine.card.card import build_card_specs
from dataprep_assets.engine.lock.difference import compare_locks
from dataprep_assets.engine.lock.drift import find_content_drift, find_recipe_drift
from dataprep_assets.engine.lock.lock import LockCounts, build_lock, encode_lock, lock_dataset, parse_lock
from dataprep_assets.errors import IntegrityError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.verify import read_receipts_below
from dataprep_assets.pipelines.blend.dataset import build_blend_specs, describe_blend_card
from dataprep_assets.stream.tokenizer import load_declared_tokenizer
from dataprep_assets_tests import forked
from dataprep_assets_tests.cli.commands import environment
from dataprep_assets_tests.engine.building import build_all
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.blend.pipeline import declare_pretraining, write_small_sources
from dataprep_assets_tests.pipelines.blend.rl.records import declare_weighted_records
from dataprep_assets_tests.pipelines.corpus.changed_corpus import SENSITIVE, ChangedCorpus
from dataprep_assets_tests.project import cloned_project

TRAIN = "train/chunk1/example_train_0.jsonl.zst"


def test_a_lock_has_every_artifact_with_its_content_and_its_source_files_with_their_counts(
    corpus: ChangedCorpus,
) -> None:
    lock = lock_dataset(corpus.specs(), corpus.store)
    receipts = dict(read_receipts_below(corpus.root))
    assert {name: one.content for name, one in lock.artifacts.items()} == {n: r.content for n, r in receipts.items()}
    tokenizer = lock.artifacts["token_bins/val-00000"].sources["tokenizer"]
    assert tokenizer == load_declared_tokenizer(corpus.declared().tokenizer).digest
    manifest = lock.artifacts["manifest"]
    assert manifest.settings["shards"] == {"count": 3, "target_bytes": None}
    assert manifest.sources.keys() == {"listing"}
    certificate = lock.artifacts["engine_certificate"].settings
    assert certificate["installed"].keys() == {"fastokens", "tokenizers", "unicode"}
    tables = {"normalization": "Unicode 9.0", "letters": "Unicode 16.0"}
    assert certificate["reference"] == lock.artifacts["token_bins/train-00000"].settings["reference"] == tables
    lines = {name: line for one in lock.artifacts.values() for name, line in one.files.items()}
    assert len(lines) == lock.files == 9
    total = sum((line.counts for line in lines.values()), LockCounts())
    ledgers = [r.ledger for r in receipts.values() if r.artifact == "token_bins" and r.ledger]
    assert (total.documents, total.tokens) == (sum(g.documents for g in ledgers), sum(g.tokens for g in ledgers))
    assert lines[TRAIN].sha256 == lock.artifacts["snapshot/train-00000"].sources[TRAIN]


def test_another_machine_writes_the_same_bytes_without_path_host_or_time(corpus: ChangedCorpus, tmp_path: Path) -> None:
    here = encode_lock(lock_dataset(corpus.specs(), corpus.store))
    (tmp_path / "other").mkdir()
    there = ChangedCorpus(tmp_path / "other", corpus.root)
    shutil.rmtree(there.root)
    there.run()  # build everything at a different time and in a different folder
    assert encode_lock(lock_dataset(there.specs(), there.store)) == here
    text = here.decode()
    for word in (str(tmp_path), str(Path.home()), socket.gethostname(), "created", "seconds"):
        assert word not in text


@pytest.mark.parametrize("stage", ["pretrain", "rl"])
def test_a_blend_whose_bytes_contain_paths_has_the_same_lock_elsewhere(stage: str, tmp_path: Path) -> None:
    """Plan, preview, run and the card that lists these contain paths; their recipes are locked, but not their bytes."""
    locks = []
    for name in ("here", "there"):
        sources = tmp_path / name / "sources"
        blend = (
            declare_pretraining(write_small_sources(sources))
            if stage == "pretrain"
            else declare_weighted_records(sources, (1.0, 1.0))
        )
        store = LocalArtifacts(tmp_path / name / "artifacts")
        specs = build_blend_specs(blend)
        specs = [*specs, *build_card_specs(describe_blend_card(blend, specs))]
        build_all(specs, store)
        locks.append(lock_dataset(specs, store))
        assert list(find_recipe_drift(specs, store, locks[0])) == [], name
        assert list(find_content_drift(specs, store, locks[0])) == [], name
    assert encode_lock(locks[0]) == encode_lock(locks[1])
    assert str(tmp_path) not in encode_lock(locks[0]).decode()
    placed = {name.partition("/")[0] for name, one in locks[0].artifacts.items() if one.content is None}
    assert placed == {"blend_plan", "blend_preview", "runs", "data_card"} | (
        {"rl_manifest"} if stage == "rl" else set()
    )
    assert locks[0].artifacts["blend_plan"].sources.keys() >= {"code" if stage == "pretrain" else "code__train"}


@pytest.mark.slow
def test_the_samples_of_the_other_pipelines_have_equal_locks_in_another_checkout(tmp_path: Path) -> None:
    names = ["sample_release", "sample_replay", "sample_tasks"]
    locks = []
    for number in range(2):
        checkout, folder = cloned_project(tmp_path / f"checkout{number}"), tmp_path / f"built{number}"
        folder.mkdir()
        command = ["-m", "dataprep_assets_tests.engine.locked_samples", folder, *names]
        variables = environment(folder) | {"PYTHONPATH": str(checkout)}
        forked.run(command, cwd=checkout, env=variables, check=True)
        locks.append({name: (folder / f"{name}.lock").read_bytes() for name in names})
    assert locks[0] == locks[1]
    for name, data in locks[0].items():
        assert str(tmp_path).encode() not in data
        lock = parse_lock(data, name)
        assert lock.dataset == name
        assert lock.artifacts


def test_the_lock_of_a_sensitive_dataset_names_no_source_file(
    corpus: ChangedCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "k" * 32)
    names = lock_dataset(corpus.specs(), corpus.store).artifacts.keys()
    corpus.run(**SENSITIVE)
    lock = lock_dataset(corpus.specs(**SENSITIVE), corpus.store)
    assert lock.is_hidden
    assert "example_train" not in encode_lock(lock).decode()
    assert lock.artifacts.keys() == names
    bins = lock.artifacts["token_bins/val-00000"]
    assert "tokenizer" in bins.sources
    every = [bins.counts, *(file.counts for one in lock.artifacts.values() for file in one.files.values())]
    numbers = [number for counts in every if counts is not None for number in vars(counts).values()]
    assert numbers
    assert all(number in (0, 1, 11) or str(number)[1:].strip("0") == "" for number in numbers)
    assert compare_locks(lock, build_lock(read_receipts_below(corpus.root), "root"), ("lock", "root")).is_empty


def test_a_dataset_that_is_out_of_date_or_incomplete_cannot_be_locked(corpus: ChangedCorpus) -> None:
    with raises(IntegrityError, "token_bins/train-00000", "dtype", "uint16", "uint32") as told:
        lock_dataset(corpus.specs(dtype="uint32"), corpus.store)
    assert "dataprep run sample_corpus" in str(told.value)
    assert "\n" not in str(told.value)
    shutil.rmtree(corpus.root / "sample_corpus" / "olmo_bins")
    with raises(IntegrityError, "olmo_bins"):
        lock_dataset(corpus.specs(), corpus.store)


def test_a_lock_from_receipts_only_equals_that_of_the_declared_dataset(corpus: ChangedCorpus) -> None:
    found = build_lock(read_receipts_below(corpus.root), "root")
    assert found.obsolete == frozenset()
    assert encode_lock(found) == encode_lock(lock_dataset(corpus.specs(), corpus.store))
