"""A corpus whose source is a prefix of a bucket."""

from pathlib import Path
from typing import Any

import pytest
import yaml
import zstandard

from dataprep_assets.engine.artifact.dataset import validate_declaration
from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.errors import ConfigError, SourceError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.corpus.dataset import corpus_specs
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.manifest import build_manifest_artifact, load_manifest
from dataprep_assets.pipelines.corpus.source.snapshot import build_snapshot
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.corpus.pipeline import data_files, run_pipeline
from dataprep_assets_tests.project import sample_attributes
from dataprep_assets_tests.samples import SAMPLE
from dataprep_assets_tests.sources.buckets import DATA, Bucket, Gcs

# Declare the reference engine, because it needs no long certification.
ATTRIBUTES = sample_attributes(
    tokenizer={"path": str(SAMPLE / "tokenizer"), "name": "sample", "engine": "tokenizers"}, views=["nanogpt"]
)


def corpus_yaml(bucket: Bucket, **source: Any) -> str:
    declared_source = {
        "kind": "object_store",
        "url": f"{bucket.url}/corpus",
        "cache_dir": "./objects",
        **bucket.settings(),
        **source,
    }
    # Keep the order of the keys, because the order of the splits is part of a declaration.
    return yaml.safe_dump({**ATTRIBUTES, "source": declared_source}, sort_keys=False)


def test_a_corpus_in_a_bucket_has_the_bytes_of_the_same_local_corpus(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put({**DATA, "README.md": b"# data\n"})
    remote = validate_declaration(CorpusDeclaration, yaml.safe_load(corpus_yaml(bucket)), tmp_path / "defs.yaml")
    local = validate_declaration(CorpusDeclaration, ATTRIBUTES, tmp_path / "defs.yaml")
    assert not run_pipeline(remote, tmp_path / "remote").failed
    assert not run_pipeline(local, tmp_path / "local").failed
    ours, theirs = data_files(tmp_path / "remote"), data_files(tmp_path / "local")
    assert ours.keys() == theirs.keys()
    differing = {name for name in ours if ours[name] != theirs[name]}
    assert {name.split("/")[-1] for name in differing} == {"manifest.jsonl", "manifest_summary.json"}
    assert {"train.bin", "val.bin", "test.bin", "files.jsonl"} <= {name.split("/")[-1] for name in ours}
    again = run_pipeline(remote, tmp_path / "remote")
    assert again.built == []
    other = zstandard.compress(b'{"text": "Other text."}\n')
    bucket.put({"train/chunk1/example_train_0.jsonl.zst": other, "train/chunk9/new.jsonl.zst": other})
    (first, *_) = find_stale(corpus_specs(remote), LocalArtifacts(tmp_path / "remote"))
    assert first.reason == (
        "its source changed: new file train/chunk9/new.jsonl.zst, edited file train/chunk1/example_train_0.jsonl.zst"
    )
    built = run_pipeline(remote, tmp_path / "remote").built
    assert sum(name.startswith("token_bins") for name in built) == 2
    assert list(find_stale(corpus_specs(remote), LocalArtifacts(tmp_path / "remote"))) == []


def test_only_a_shard_whose_object_changed_fails(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put(DATA)
    corpus = validate_declaration(CorpusDeclaration, yaml.safe_load(corpus_yaml(bucket)), tmp_path / "defs.yaml")
    artifacts = LocalArtifacts(tmp_path / "artifacts")
    build_manifest_artifact(corpus, artifacts)
    manifest = load_manifest(corpus, artifacts)
    bucket.put({"train/chunk1/example_train_0.jsonl.zst": b"something else"})
    first, second = manifest.partitions("train")[:2]
    with raises(SourceError, "example_train_0.jsonl.zst"):
        build_snapshot(corpus, artifacts, manifest, first)
    build_snapshot(corpus, artifacts, manifest, second)


@pytest.mark.parametrize(
    ("change", "values"),
    [
        ({"url": "gcs://bucket/corpus"}, ("source.url", "gcs://bucket/corpus", "s3://bucket/prefix")),
        ({"url": "s3:/bucket"}, ("source.url", "s3:/bucket", "s3://bucket/prefix")),
        ({"cache_dir": None}, ("cache_dir",)),
        ({"secret": "x"}, ("secret",)),
    ],
)
def test_a_wrong_declaration_lists_the_allowed_values(
    gcs: Gcs, tmp_path: Path, change: dict[str, Any], values: tuple[str, ...]
) -> None:
    with raises(ConfigError, *values):
        validate_declaration(CorpusDeclaration, yaml.safe_load(corpus_yaml(gcs, **change)), tmp_path / "defs.yaml")
