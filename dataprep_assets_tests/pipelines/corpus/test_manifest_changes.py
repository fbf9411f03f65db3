"""What changed from one manifest to the next is told in words, in tables, and without names where it is sensitive."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from dataprep_assets.engine.artifact.metadata_values import Markdown, Table
from dataprep_assets.engine.artifact.spec import BuildRequest
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.corpus.dataset import corpus_specs
from dataprep_assets.pipelines.corpus.source import manifest
from dataprep_assets.pipelines.corpus.source.manifest import build_manifest_artifact, load_manifest, plan_manifest
from dataprep_assets.pipelines.corpus.source.manifest_changes import (
    ManifestChanges,
    ShardWork,
    build_change_metadata,
    compare_manifests,
)
from dataprep_assets.planning.cost import format_bytes
from dataprep_assets.planning.manifest import ManifestEntry, SourceFile, build_manifest
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.corpus.pipeline import sample_declaration
from dataprep_assets_tests.samples import SMALL


def entries(sizes: Mapping[str, int], commit: str | None = None) -> list[ManifestEntry]:
    files = [SourceFile(relpath=f"{name}.jsonl", size_bytes=size) for name, size in sizes.items()]
    return build_manifest(files, include=["**"], splits={"train": ["a*"], "val": ["b*"]}, commit=commit)


def between(
    old: Sequence[ManifestEntry], new: Sequence[ManifestEntry], plans: tuple[Mapping[str, Sequence[int]], ...]
) -> ManifestChanges:
    return compare_manifests(old, plans[0], new, plans[1])


NOTHING = ShardWork(source_bytes=0, tokens=0, cpu_seconds=0.0)
OLD = entries({"a1": 1, "a2": 2, "b1": 3})
OLD_PLAN = {"train-00000": [0], "train-00001": [1], "val-00000": [2]}


def test_files_and_shards_are_told_by_what_happened_to_them() -> None:
    new = entries({"a2": 2, "a3": 5, "b1": 4})
    changes = between(OLD, new, (OLD_PLAN, {"train-00001": [0], "train-00002": [1], "val-00000": [2]}))
    assert changes == ManifestChanges(
        added=("a3.jsonl",),
        removed=("a1.jsonl",),
        edited=("b1.jsonl",),
        new_shards=("train-00002",),
        edited_shards=("val-00000",),
        gone_shards=("train-00000",),
    )
    shown = build_change_metadata(
        sample_declaration(), changes, ShardWork(source_bytes=9_000, tokens=2_345, cpu_seconds=1.5)
    )
    assert shown["changes"] == "1 file added, 1 file removed, 1 file changed, 1 shard new, 1 shard gone"
    assert isinstance(files := shown["changed_files"], Table)
    assert [tuple(row.values()) for row in files.rows] == [
        ("a3.jsonl", "added"),
        ("a1.jsonl", "removed"),
        ("b1.jsonl", "changed"),
    ]
    assert isinstance(shards := shown["changed_shards"], Table)
    assert [(row["split"], row["new"], row["changed"], row["gone"]) for row in shards.rows] == [
        ("train", 1, 0, 1),
        ("val", 0, 1, 0),
    ]
    follows = shown["effects"]
    assert isinstance(follows, Markdown)
    assert_names(follows.text, "`token_bins`", "2 shards", "9.0 kB", "2,345 tokens", "1.5 s")
    assert_names(follows.text, "`combined_bins`", "train, val", "4 views")
    assert "dataprep prune sample_corpus" in follows.text


def test_an_order_that_moves_ordinals_alone_changes_no_shard() -> None:
    new = {entry.relpath[:2]: entry for entry in entries({"a0": 9, "a1": 1, "a2": 2, "b1": 3})}
    plan = {"train-00000": [0], "train-00001": [1], "train-00002": [2], "val-00000": [3]}
    # `a0` was appended, so it follows the files of the earlier shards.
    order = [new[name] for name in ("a1", "a2", "a0", "b1")]
    assert between(OLD, order, (OLD_PLAN, plan)).edited_shards == ()


def test_a_moved_commit_is_told_and_nothing_is_where_nothing_changed() -> None:
    moved = between(entries({"a1": 1, "b1": 1}, "1" * 40), entries({"a1": 1, "b1": 1}, "2" * 40), ({}, {}))
    assert build_change_metadata(sample_declaration(), moved, NOTHING) == {
        "changes": f"the revision changed from {'1' * 12} to {'2' * 12}"
    }
    assert build_change_metadata(sample_declaration(), between(OLD, OLD, (OLD_PLAN, OLD_PLAN)), NOTHING) == {}


def test_of_a_sensitive_dataset_no_file_is_named() -> None:
    changes = ManifestChanges(added=("patient-7.jsonl",), new_shards=("train-00003",))
    document = {"id_key": {"env": "SOME_KEY"}}
    shown = build_change_metadata(sample_declaration(sensitive=True, document=document), changes, NOTHING)
    assert "patient" not in str(shown)
    assert shown["changes"] == "1 file added, 1 shard new"


def test_the_build_that_replaces_a_manifest_tells_it_and_the_next_one_nothing(tmp_path: Path) -> None:
    data = Path(shutil.copytree(SMALL, tmp_path / "data"))
    manifest = corpus_specs(sample_declaration(data))[0]

    def build() -> Mapping[str, object]:
        (outcome,) = manifest.build(BuildRequest(store=LocalArtifacts(tmp_path / "root")))
        return outcome.metadata

    assert build() == {}, "there was none before it"
    shutil.copy(data / "validation/chunk1/example_holdout_0.jsonl.zst", data / "validation/chunk1/more.jsonl.zst")
    told = build()
    assert told["changes"] == "1 file added, 1 shard new"
    assert told.keys() == {"changes", "changed_files", "changed_shards", "effects"}
    follows = told["effects"]
    assert isinstance(follows, Markdown)
    size = (data / "validation/chunk1/more.jsonl.zst").stat().st_size
    assert_names(follows.text, "1 shard", format_bytes(size))
    assert build() == {}


def test_a_new_file_of_no_split_is_named_before_the_manifest_is_built(tmp_path: Path) -> None:
    (tmp_path / "train_a.jsonl").write_text('{"text": "tea"}\n')
    (tmp_path / "old.jsonl").write_text('{"text": "old"}\n')
    corpus = sample_declaration(tmp_path, splits={"train": ["train*"]}, include=["*.jsonl"])
    store = LocalArtifacts(tmp_path / "out")
    build_manifest_artifact(corpus, store)
    (tmp_path / "new.jsonl").write_text('{"text": "new"}\n')
    changes = plan_manifest(corpus, store).changes
    assert changes == ManifestChanges(no_split=("new.jsonl",))
    assert str(changes) == "1 file in no split"
    (line,) = changes.lines
    assert line.split()[:2] == ["file", "new.jsonl"]
    build_manifest_artifact(corpus, store)
    assert plan_manifest(corpus, store).changes == ManifestChanges(), "it is known now"


def test_many_files_are_listed_as_a_few_and_a_count() -> None:
    shown = build_change_metadata(
        sample_declaration(), ManifestChanges(added=tuple(f"a{i}" for i in range(70))), NOTHING
    )
    assert isinstance(files := shown["changed_files"], Table)
    assert len(files.rows) == 51
    assert files.rows[-1]["file"] == "and 20 more"


def test_a_plan_that_another_run_has_overtaken_is_made_again(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"train_{name}.jsonl").write_text('{"text": "tea"}\n')
    corpus = sample_declaration(tmp_path, splits={"train": ["train*"]}, include=["*.jsonl"], shards={"target_bytes": 1})
    store = LocalArtifacts(tmp_path / "out")
    build_manifest_artifact(corpus, store)
    (tmp_path / "train_c.jsonl").write_text('{"text": "goat"}\n')
    overtaken = plan_manifest(corpus, store)
    (tmp_path / "train_a.jsonl").unlink()
    build_manifest_artifact(corpus, store)
    before = load_manifest(corpus, store)
    with pytest.raises(manifest._OvertakenError):
        manifest._commit_manifest(corpus, store, overtaken, lambda _: None)
    assert load_manifest(corpus, store) == before
    (tmp_path / "train_d.jsonl").write_text('{"text": "kite"}\n')
    build_manifest_artifact(corpus, store)
    assert [path for path in (tmp_path / "out").rglob(".staging/*") if path.suffix != ".lock"] == []
