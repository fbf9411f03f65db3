"""Drift from a lock is reported with its reason, before a build if possible."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.artifact.build import iterate_builds
from dataprep_assets.engine.card.card import build_card_specs
from dataprep_assets.engine.lock.difference import compare_locks
from dataprep_assets.engine.lock.drift import (
    Drift,
    adopt_plan,
    find_content_drift,
    find_copy_drift,
    find_recipe_drift,
    find_undeclared_artifacts,
)
from dataprep_assets.engine.lock.lock import Lock, build_lock, encode_lock, lock_dataset, parse_lock
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.sync import Sync
from dataprep_assets.integrity.verify import read_receipts_below, verify_path, verify_store
from dataprep_assets.pipelines.blend.dataset import build_blend_specs
from dataprep_assets.pipelines.corpus.dataset import describe_corpus_card
from dataprep_assets.stores.connect import LocalAddress
from dataprep_assets.stores.files import digest_value
from dataprep_assets_tests.engine.building import build_all
from dataprep_assets_tests.fakes.places import Places
from dataprep_assets_tests.faults.edits import edit_receipt, flip_byte
from dataprep_assets_tests.pipelines.blend.pipeline import (
    declare_pretraining,
    make_texts,
    write_rows,
    write_small_sources,
)
from dataprep_assets_tests.pipelines.corpus.changed_corpus import SENSITIVE, ChangedCorpus

VAL = "validation/chunk1/example_holdout_0.jsonl.zst"


@pytest.fixture
def lock(corpus: ChangedCorpus) -> Lock:
    """Return the lock as read from its file."""
    return parse_lock(encode_lock(lock_dataset(corpus.specs(), corpus.store)), "dataset.lock")


def find_early_drift(corpus: ChangedCorpus, lock: Lock, **changes: Any) -> dict[str, str]:
    """Return the drift that is refused before a build."""
    return {one.name: one.reason for one in find_recipe_drift(corpus.specs(**changes), corpus.store, lock)}


def copy_of(path: Path, lock: Lock, select: Sequence[str] = ()) -> dict[str, str]:
    """Return the drift of a copy."""
    return {
        one.name: one.reason
        for one in find_copy_drift(lock, verify_path(path, strays=True), select)
        if not one.is_obsolete
    }


def test_a_locked_dataset_has_no_drift_before_or_after_a_build(corpus: ChangedCorpus, lock: Lock) -> None:
    assert find_early_drift(corpus, lock) == {}
    assert list(find_content_drift(corpus.specs(), corpus.store, lock)) == []
    assert list(find_undeclared_artifacts(corpus.specs(), corpus.store, lock)) == []


@pytest.mark.parametrize(
    ("changes", "name", "reason"),
    [
        ({"dtype": "uint32"}, "token_bins/train-00000", "dtype was uint16, now uint32"),
        ({"text_field": "body"}, "token_bins/val-00000", "text_field was text, now body"),
        ({"shards": {"count": 2}}, "manifest", "shards.count was 3, now 2"),
        ({"olmo_sequence_length": 64}, "olmo_bins", "olmo_sequence_length was 512, now 64"),
        ({"views": ["nanogpt", "megatron", "datatrove"]}, "olmo_bins", "in the lock, but not declared"),
        (
            {"views": ["nanogpt", "megatron", "datatrove", "olmo", "mds"]},
            "mds_bins",
            "declared, but not in the lock",
        ),
    ],
)
def test_a_changed_setting_is_named_with_both_values_before_a_build(
    corpus: ChangedCorpus, lock: Lock, changes: dict[str, Any], name: str, reason: str
) -> None:
    found = find_early_drift(corpus, lock, **changes)
    assert found[name] == reason
    assert not {one for one in found if one.startswith("snapshot")}, "their sources are what they were"


def test_a_changed_byte_of_a_source_is_named_with_its_file(corpus: ChangedCorpus, lock: Lock) -> None:
    path = corpus.data / VAL
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1  # the file keeps its size, so the listing has not changed
    path.write_bytes(raw)
    assert find_early_drift(corpus, lock) == {"snapshot/val-00000": f"its source changed: {VAL}"}


def test_a_source_of_another_size_changes_the_listing_and_is_named(corpus: ChangedCorpus, lock: Lock) -> None:
    corpus.rewrite(VAL, b" the ", b" teh it is longer ")
    found = find_early_drift(corpus, lock)
    assert found.pop("manifest").startswith("its source changed: ")
    assert found == {"snapshot/val-00000": f"its source changed: {VAL}"}


def test_added_and_removed_files_are_named_even_before_the_first_build(corpus: ChangedCorpus, lock: Lock) -> None:
    chunk = corpus.data / "train" / "chunk1"
    (chunk / "example_train_1.jsonl.zst").rename(chunk / "example_train_77.jsonl.zst")
    shutil.rmtree(corpus.root)
    assert find_early_drift(corpus, lock) == {
        "manifest": "its source changed: listing (files 1 added: train/chunk1/example_train_77.jsonl.zst; "
        "1 removed: train/chunk1/example_train_1.jsonl.zst)"
    }


def test_names_of_sensitive_sources_are_hidden(corpus: ChangedCorpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "k" * 32)
    corpus.run(**SENSITIVE)
    lock = lock_dataset(corpus.specs(**SENSITIVE), corpus.store)
    assert find_early_drift(corpus, lock, **SENSITIVE) == {}
    path = corpus.data / VAL
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    ((name, reason),) = find_early_drift(corpus, lock, **SENSITIVE).items()
    assert name == "snapshot/val-00000"
    assert reason.startswith("its source changed: #")
    assert "holdout" not in reason


def test_a_damaged_or_missing_artifact_is_no_drift_because_a_run_rebuilds_it(corpus: ChangedCorpus, lock: Lock) -> None:
    flip_byte(corpus.root / "sample_corpus/token_bins/train-00001/tokens.bin")
    flip_byte(corpus.root / "sample_corpus/combined_bins/val/receipt.json")
    shutil.rmtree(corpus.root / "sample_corpus/olmo_bins")
    assert find_early_drift(corpus, lock) == {}
    build_all(corpus.specs(), corpus.store)
    assert list(find_content_drift(corpus.specs(), corpus.store, lock)) == []


def test_different_bytes_of_the_same_recipe_are_drift_and_name_the_libraries(corpus: ChangedCorpus, lock: Lock) -> None:
    """As another version of a library would write them: the key is the lock's, but the content differs."""

    def change(value: dict[str, Any]) -> None:
        value["files"][0]["sha256"] = "0" * 64
        value["measured"]["versions"]["numpy"] = "9.9"
        value["content"] = digest_value([[f["path"], f["bytes"], f["sha256"]] for f in value["files"]])

    edit_receipt(corpus.root / "sample_corpus/megatron_bins/receipt.json", change)
    ((name, reason),) = find_early_drift(corpus, lock).items()
    assert name == "megatron_bins"
    assert "the lock has" in reason
    assert "numpy was" in reason
    assert "now 9.9" in reason
    (after,) = find_content_drift(corpus.specs(), corpus.store, lock)
    assert (after.name, after.reason) == (name, reason)


def test_on_a_fresh_machine_drift_is_known_before_a_build(corpus: ChangedCorpus, lock: Lock) -> None:
    """Nothing is built yet: each recipe is compared once its inputs are built."""
    shutil.rmtree(corpus.root)
    specs = corpus.specs(bad_records={"max_record_bytes": 1 << 20})
    found: list[Drift] = list(find_recipe_drift(specs, corpus.store, lock))
    assert found == []
    built: list[str] = []
    for spec, partitions in iterate_builds(specs, corpus.store):
        if found := list(find_recipe_drift(specs, corpus.store, lock, [spec])):
            break
        built += build_all(specs, corpus.store, [(spec, partitions)])
        assert list(find_content_drift([spec], corpus.store, lock, partitions)) == []
    assert built == ["manifest", "engine_certificate", *(f"snapshot/train-0000{i}" for i in range(3))]
    assert [one.name for one in found] == [f"token_bins/train-0000{i}" for i in range(3)]
    assert {one.reason for one in found} == {"bad_records.max_record_bytes was 67108864, now 1048576"}


@pytest.mark.parametrize("sensitive", [False, True])
def test_a_fresh_machine_builds_the_shards_of_an_appended_corpus(
    corpus: ChangedCorpus, sensitive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shards follow from the order in which files were added, which only the lock contains."""
    monkeypatch.setenv("SOME_KEY", "k" * 32)
    declared = SENSITIVE if sensitive else {}
    chunk = corpus.data / "train" / "chunk1"
    corpus.run(**declared)
    shutil.copy(chunk / "example_train_0.jsonl.zst", chunk / "example_train_11.jsonl.zst")
    corpus.run(**declared)
    specs = corpus.specs(**declared)
    lock = lock_dataset(specs, corpus.store)
    assert "token_bins/train-00003" in lock.artifacts
    shutil.rmtree(corpus.root)
    adopt_plan(specs, corpus.store, lock)
    assert find_early_drift(corpus, lock, **declared) == {}
    build_all(specs, corpus.store)
    assert list(find_content_drift(specs, corpus.store, lock)) == []
    shutil.rmtree(corpus.root)
    (chunk / "example_train_11.jsonl.zst").unlink()
    adopt_plan(specs, corpus.store, lock)
    assert not corpus.root.exists(), "another source: no plan of it is committed"
    assert find_early_drift(corpus, lock, **declared).keys() == {"manifest"}


def test_a_fresh_machine_builds_the_locked_dataset(corpus: ChangedCorpus, lock: Lock) -> None:
    shutil.rmtree(corpus.root)
    assert find_early_drift(corpus, lock) == {}
    build_all(corpus.specs(), corpus.store)
    assert list(find_content_drift(corpus.specs(), corpus.store, lock)) == []


def test_a_blend_in_another_folder_matches_its_lock_unless_a_weight_changed(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    blend = declare_pretraining(write_small_sources(here / "sources"))
    build_all(build_blend_specs(blend), LocalArtifacts(here / "artifacts"))
    lock = lock_dataset(build_blend_specs(blend), LocalArtifacts(here / "artifacts"))
    store = LocalArtifacts(there / "artifacts")
    same = build_blend_specs(declare_pretraining(write_small_sources(there / "sources")))
    build_all(same, store)
    assert list(find_recipe_drift(same, store, lock)) == []
    assert list(find_content_drift(same, store, lock)) == []
    assert {d.name: d.reason for d in find_copy_drift(lock, verify_path(there / "artifacts"))} == {}
    heavier = {"datasets": [{"name": n, "path": str(there / "sources" / n), "weight": 1.0} for n in ("code", "web")]}
    other = build_blend_specs(declare_pretraining(there / "sources", blend=heavier))
    (found, *_) = find_recipe_drift(other, store, lock)
    assert (found.name, found.reason) == ("blend_plan", "blend.code.weight was 3.0, now 1.0 (and 1 more)")
    write_rows(there / "sources" / "code" / "part-2.jsonl.zst", make_texts("code", 41))
    (found, *_) = find_recipe_drift(same, store, lock)
    assert (found.name, found.reason) == ("blend_plan", "its source changed: code")


def test_a_copy_is_verified_at_any_location(corpus: ChangedCorpus, lock: Lock, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(corpus.root / "sample_corpus", tmp_path / "copy"))
    assert copy_of(copied, lock) == {}
    path = copied / "nanogpt_bins" / "val.bin"
    flip_byte(path)
    shutil.rmtree(copied / "olmo_bins")
    shutil.copytree(copied / "token_bins" / "val-00000", copied / "token_bins" / "val-00007")
    edit_receipt(copied / "token_bins" / "val-00007" / "receipt.json", lambda v: v.update(partition="val-00007"))
    found = copy_of(copied, lock)
    assert found.keys() == {"nanogpt_bins", "olmo_bins"}
    assert "val.bin: " in found["nanogpt_bins"]
    assert found["olmo_bins"] == "missing: in the lock, but not found"
    # `diff` also treats the copied shard as obsolete, because nothing is built from it.
    obsolete = [one.name for one in find_copy_drift(lock, verify_path(copied, strays=True)) if one.is_obsolete]
    assert obsolete == ["token_bins/val-00007"]
    assert copy_of(copied, lock, ["megatron_bins", "combined_bins/*"]) == {
        name: reason for name, reason in found.items() if name != "olmo_bins"
    }


def test_extra_artifacts_in_a_copy_are_named_with_their_folder(
    corpus: ChangedCorpus, lock: Lock, tmp_path: Path
) -> None:
    copied = Path(shutil.copytree(corpus.root, tmp_path / "copy")) / "sample_corpus"
    (copied / "README.md").write_text("beside the artifacts, a file is none")
    for path, other in (
        ("nanogpt_bins", "nanogpt_old"),
        ("token_bins/val-00000", "token_bins/val-00007"),
        ("token_bins/val-00000", "old/token_bins/val-00000"),
        ("token_bins/val-00000", "loose/val-00000"),
    ):
        shutil.copytree(copied / path, copied / other)
    (copied / "loose" / "val-00000" / "receipt.json").unlink()
    (copied / "olmo_bins" / "receipt.json").unlink()
    shutil.move(copied / "token_bins" / "train-00000", tmp_path / "first")
    shutil.move(copied / "token_bins" / "train-00001", copied / "token_bins" / "train-00000")
    shutil.move(tmp_path / "first", copied / "token_bins" / "train-00001")
    wanted = {
        "nanogpt_old": "extra: not in the lock; its receipt belongs to sample_corpus/nanogpt_bins",
        "token_bins/val-00007": "extra: not in the lock; its receipt belongs to sample_corpus/token_bins/val-00000",
        "token_bins/val-00000": f"extra: {copied}/old/token_bins/val-00000 is in a different folder",
        "loose/val-00000": "extra: files without a receipt, not in the lock",
        "olmo_bins": "missing: in the lock, but not found",
        "token_bins/train-00000": "its receipt belongs to token_bins/train-00001",
        "token_bins/train-00001": "its receipt belongs to token_bins/train-00000",
    }
    assert copy_of(copied, lock) == copy_of(copied.parent, lock) == wanted
    renamed = copied.rename(tmp_path / "copy" / "any_name")
    wanted["token_bins/val-00000"] = wanted["token_bins/val-00000"].replace(str(copied), str(renamed))
    assert copy_of(renamed, lock) == wanted


def test_another_dataset_is_extra_only_in_the_folder_of_this_one(
    corpus: ChangedCorpus, lock: Lock, tmp_path: Path
) -> None:
    corpus.run(dataset="other", splits={"val": ["validation/**"]}, views=[])
    assert copy_of(corpus.root, lock) == {}
    shutil.copytree(corpus.root / "other" / "manifest", corpus.root / "sample_corpus" / "manifest_of_other")
    reason = "extra: not in the lock; its receipt belongs to other/manifest"
    assert copy_of(corpus.root, lock) == {"manifest_of_other": reason}


def test_a_copy_of_a_different_build_is_not_the_locked_one(corpus: ChangedCorpus, lock: Lock) -> None:
    corpus.run(olmo_sequence_length=64)
    assert copy_of(corpus.root, lock) == {"olmo_bins": "olmo_sequence_length was 512, now 64"}


def test_a_view_that_is_no_longer_declared_is_obsolete_for_diff_and_verify(
    corpus: ChangedCorpus, tmp_path: Path
) -> None:
    def built(*views: str) -> Lock:
        declared = corpus.declared(views=[*views])
        specs = corpus.specs(views=[*views])
        specs = [*specs, *build_card_specs(describe_corpus_card(declared, specs))]
        build_all(specs, corpus.store)
        return lock_dataset(specs, corpus.store)

    def is_told(lock: Lock) -> tuple[Sequence[str], Sequence[str], dict[str, str]]:
        found = build_lock(read_receipts_below(corpus.root), "root")
        differs, verdicts = compare_locks(lock, found, ("lock", "root")), verify_path(corpus.root, strays=True)
        obsolete = [one.name for one in find_copy_drift(lock, verdicts) if one.is_obsolete]
        assert copy_of(corpus.root, lock).keys() == {*differs.added, *differs.removed, *differs.changed}
        return obsolete, differs.obsolete, copy_of(corpus.root, lock)

    both, one = built("nanogpt", "olmo"), built("nanogpt")
    obsolete = ["datatrove_bins", "megatron_bins", "olmo_bins"]
    assert is_told(one) == (obsolete, obsolete, {}), "as a lock of what is declared now has it"
    # With a lock from before the removal, only the data card differs, because the artifact of the removed view still
    # exists.
    assert is_told(both)[2].keys() == {"data_card"}
    # A newer artifact is not obsolete, although the card does not name it yet.
    corpus.run(views=["nanogpt", "megatron"], dtype="uint32")
    assert "megatron_bins" in is_told(one)[2]


def test_a_copy_in_a_bucket_is_verified(corpus: ChangedCorpus, lock: Lock, servers: Places, tmp_path: Path) -> None:
    opened = servers.new("folder")()
    copying = Sync(source=LocalAddress(root=corpus.root)(), destination=opened, work=tmp_path / "work")
    copying.run(copying.plan())
    assert [str(one) for one in find_copy_drift(lock, verify_store(opened, strays=True))] == []
    opened.delete("sample_corpus/combined_bins/val/val.bin")
    receipt = b"".join(opened.read("sample_corpus/manifest/receipt.json"))
    opened.put("sample_corpus/manifest_2/receipt.json", receipt)
    opened.put("sample_corpus/loose/val-00000/tokens.bin", b"")
    assert {one.name: one.reason for one in find_copy_drift(lock, verify_store(opened, "size", strays=True))} == {
        "combined_bins/val": "val.bin: missing",
        "manifest_2": "extra: not in the lock; its receipt belongs to sample_corpus/manifest",
        "loose/val-00000": "extra: files without a receipt, not in the lock",
    }
