"""Partitions that are no longer planned are reported but kept, in a folder and in a bucket."""

import shutil
from pathlib import Path

from dataprep_assets.engine.staleness.status import find_stale, find_unplanned_artifacts, prune
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.bucket import BucketArtifacts
from dataprep_assets.pipelines.blend.blend import find_blend_run
from dataprep_assets.pipelines.blend.dataset import build_blend_specs
from dataprep_assets.pipelines.corpus.dataset import corpus_specs
from dataprep_assets_tests.engine.building import build_all
from dataprep_assets_tests.fakes.places import Places
from dataprep_assets_tests.pipelines.blend.rl.records import declare_weighted_records
from dataprep_assets_tests.pipelines.corpus.pipeline import run_pipeline, sample_declaration


def set_shards(count: int) -> dict[str, object]:
    """Return the changes that give the train split of a sample this number of shards."""
    return {"splits": {"train": ["train/**"]}, "shards": {"count": count}, "views": []}


def test_obsolete_shards_are_reported_and_kept(tmp_path: Path) -> None:
    store = LocalArtifacts(tmp_path)
    run_pipeline(sample_declaration(**set_shards(3)), store)
    assert list(find_unplanned_artifacts(corpus_specs(sample_declaration(**set_shards(3))), store)) == []
    fewer = sample_declaration(**set_shards(1))
    run_pipeline(fewer, store)
    assert [str(artifact) for artifact in find_unplanned_artifacts(corpus_specs(fewer), store)] == [
        f"sample_corpus/{name}/train-0000{index}" for name in ("snapshot", "token_bins") for index in (1, 2)
    ]
    assert list(find_stale(corpus_specs(fewer), store)) == [], "what is in no plan is not stale"


def test_the_run_of_a_blend_from_before_a_weight_change_is_obsolete(tmp_path: Path) -> None:
    store, runs = LocalArtifacts(tmp_path / "artifacts"), []
    for weight in (1.0, 3.0):
        blend = declare_weighted_records(tmp_path / "sources", (1.0, weight))
        specs = build_blend_specs(blend)
        build_all(specs, store)
        runs.append(str(find_blend_run(blend, store)))
    assert [str(one) for one in find_unplanned_artifacts(specs, store)] == [runs[0]]
    assert all(gone for _, gone in prune(specs, store))
    assert list(find_unplanned_artifacts(specs, store)) == []
    assert store.receipt(find_blend_run(blend, store)) is not None


def test_undeclared_artifacts_are_reported_and_removed_but_a_users_folder_stays(tmp_path: Path) -> None:
    store = LocalArtifacts(tmp_path)
    document = {"document": {"separator": "<|endoftext|>", "keep_fields": {}}}
    build_all(corpus_specs(sample_declaration(**set_shards(1) | {"views": ["nanogpt", "megatron"]} | document)), store)
    fewer = corpus_specs(sample_declaration(**set_shards(1) | {"views": ["nanogpt"]}))
    (tmp_path / "sample_corpus" / "somebodys" / "own").mkdir(parents=True)
    shutil.copytree(tmp_path / "sample_corpus" / "token_bins", tmp_path / "sample_corpus" / "a_copy")
    (tmp_path / "sample_corpus" / "link").symlink_to(tmp_path / "sample_corpus" / "documents")
    names = ["documents/train-00000", "megatron_bins", "tags/train-00000"]
    assert [str(one) for one in find_unplanned_artifacts(fewer, store)] == [f"sample_corpus/{name}" for name in names]
    assert all(gone for _, gone in prune(fewer, store))
    assert list(find_unplanned_artifacts(fewer, store)) == []
    assert (tmp_path / "sample_corpus" / "somebodys" / "own").is_dir()
    assert (tmp_path / "sample_corpus" / "a_copy" / "train-00000" / "receipt.json").is_file()
    assert list(find_stale(fewer, store)) == []


def test_without_a_plan_nothing_is_obsolete(tmp_path: Path) -> None:
    corpus, store = sample_declaration(**set_shards(2)), LocalArtifacts(tmp_path)
    run_pipeline(corpus, store)
    (tmp_path / "sample_corpus" / "manifest" / "receipt.json").unlink()
    assert list(find_unplanned_artifacts(corpus_specs(corpus), store)) == []


def test_a_bucket_lists_its_finished_partitions(servers: Places, tmp_path: Path) -> None:
    place = servers.new("folder")
    store = BucketArtifacts(tmp_path / "cache", place, place.url, None)
    run_pipeline(sample_declaration(**set_shards(1)), store)
    assert store.partitions("sample_corpus", "token_bins") == ["train-00000"]
    assert store.partitions("sample_corpus", "nothing") == []
    assert {"manifest", "snapshot", "token_bins"} <= set(store.names("sample_corpus"))
    specs = [spec for spec in corpus_specs(sample_declaration(**set_shards(1))) if spec.name != "token_bins"]
    assert [str(one) for one in find_unplanned_artifacts(specs, store)] == ["sample_corpus/token_bins/train-00000"]
