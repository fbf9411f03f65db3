"""The YAML of a release: valid declarations, messages about mistakes, and shipped releases."""

import re
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster import AssetKey

from dataprep_assets.cli.support.project import find_dataset_folder
from dataprep_assets.cli.support.project import use_dataset as dataset_named
from dataprep_assets.code_location import bind_resources
from dataprep_assets.definitions import PROJECT_ROOT, defs
from dataprep_assets.engine.artifact.dataset import validate_declaration
from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.errors import ConfigError
from dataprep_assets.formats import npy_shards
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.orchestration.component import build_dataset_definitions
from dataprep_assets.pipelines.corpus.views import VIEWS
from dataprep_assets.pipelines.release.component import ShardRelease
from dataprep_assets.pipelines.release.declaration import ReleaseDeclaration, ReleaseOptions
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.release.release_project import release_attributes
from dataprep_assets_tests.project import scaffold


@pytest.mark.parametrize(
    ("change", "key", "told"),
    [
        ({"release": None}, "release", "a block of keys"),
        ({"release": {}}, "release.tokens_per_shard", "missing: "),
        ({"release": {"tokens_per_shard": 0}}, "release.tokens_per_shard", "at least 2"),
        (
            {"release": {"tokens_per_shard": 5000}},
            "release",
            "must be a multiple of `sequence_length` (2048). Use",
        ),
        ({"release": {"tokens_per_shard": 100}}, "release", "Use 2048"),
        ({"sequence_length": 1}, "release.sequence_length", "at least 2"),
        ({"sequence_length": "long"}, "release.sequence_length", "a whole number"),
        ({"shuffle_seed": -1}, "release.shuffle_seed", "at least 0"),
        ({"mix": 0}, "release.mix", "at least 1"),
        ({"tail": "keep"}, "release.tail", "one of drop, pad"),
        ({"expected_repeats": 2}, "release.expected_repeats", "at most 1"),
        ({"publish": "ftp://host/shards"}, "release.publish", "s3://bucket/prefix, gs://bucket/prefix"),
        ({"publish": "s3://"}, "release.publish", "'s3://' is not a storage URL"),
        ({"shards_per_run": 3}, "release.shards_per_run", "unknown key; "),
        ({"views": ["tfds"]}, "views.0", f"one of {', '.join(VIEWS)}"),
    ],
)
def test_a_wrong_declaration_names_file_key_value_and_what_is_allowed(
    change: dict[str, Any], key: str, told: str, tmp_path: Path
) -> None:
    whole = {"release", "views"} & change.keys()
    attributes = release_attributes() | change if whole else release_attributes(None, **change)
    with pytest.raises(ConfigError) as raised:
        validate_declaration(ReleaseDeclaration, attributes, tmp_path / "defs.yaml")
    message = str(raised.value)
    assert f"{tmp_path / 'defs.yaml'}: {key}: " in message
    assert told in message


def test_credentials_in_the_location_are_refused_and_not_quoted(tmp_path: Path) -> None:
    with raises(ConfigError, "credentials") as raised:
        validate_declaration(
            ReleaseDeclaration, release_attributes("s3://KEYID:hidden@bucket/x"), tmp_path / "defs.yaml"
        )
    assert "hidden" not in str(raised.value)


def test_a_folder_to_publish_to_is_relative_to_the_yaml_and_a_url_is_kept(tmp_path: Path) -> None:
    def target(publish: str) -> str | None:
        return validate_declaration(
            ReleaseDeclaration, release_attributes(publish), tmp_path / "d" / "defs.yaml"
        ).release.publish

    assert target("../public") == str(tmp_path / "public")
    assert target("/mnt/public") == "/mnt/public"
    assert target("s3://dataset/tokenized") == "s3://dataset/tokenized"


def test_the_shipped_releases_load_without_network_access(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("loading definitions opened a connection")

    for name in ("R2_DATASET_ACCOUNT_ID", "DATAPREP_ENDPOINT_URL", "DATAPREP_STORAGE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    for dataset in ("dclm_2t", "sample_release"):
        graph = bind_resources(build_dataset_definitions(dataset_named(dataset)), PROJECT_ROOT).resolve_asset_graph()
        names = {key.path[-1] for key in graph.get_all_asset_keys() if key.path[0] == dataset}
        assert {"token_bins_train", "release_plan", "npy_shards", "published_shards"} <= names
        assert "combined_bins" not in names
        checks = {key.name for key in graph.asset_check_keys if key.asset_key.path[0] == dataset}
        assert {"tokens_accounted", "matches_stream", "remote_matches_local", "no_orphans"} <= checks


def test_the_graph_leads_from_token_bins_to_the_publication() -> None:
    graph = defs().resolve_asset_graph()

    def parents(name: str) -> set[str]:
        key = AssetKey(f"sample_release/{name}".split("/"))
        return {parent.to_user_string() for parent in graph.get(key).parent_keys}

    assert parents("release_plan") == {f"sample_release/token_bins_{split}" for split in ("train", "val")}
    assert parents("npy_shards") == {"sample_release/release_plan"}
    assert parents("published_shards") == {"sample_release/npy_shards"}


def test_dclm_2t_has_the_published_dimensions(tmp_path: Path) -> None:
    """As documented in docs/formats/npy-shards.md#dimensions: 2,048 tokens per sample, 100 Gi tokens per shard."""
    path = find_dataset_folder("dclm_2t") / "defs.yaml"
    release = validate_declaration(ReleaseDeclaration, yaml.safe_load(path.read_text())["attributes"], path)
    options = release.release
    assert (options.sequence_length, options.tokens_per_shard) == (2048, 100 * 2**30)
    assert npy_shards.compute_shard_bytes(options.tokens_per_shard, release.dtype) == 429_496_729_728
    assert release.source.repo == "mlfoundations/dclm-baseline-1.0-parquet"  # type: ignore[union-attr]
    first = next(find_stale(ShardRelease(release).specs, LocalArtifacts(tmp_path)))
    assert (first.name, first.kind) == ("dclm_2t/manifest", "missing")


def test_the_scaffold_is_a_commented_declaration_that_validates(tmp_path: Path) -> None:
    written = scaffold(ShardRelease, tmp_path / "my_release")
    text = written.read_text()
    release = validate_declaration(ReleaseDeclaration, yaml.safe_load(text)["attributes"], written)
    assert release.dataset == "my_release"
    assert release.release.publish is None
    assert not release.combines
    commented = re.sub(r"(?m)^    # ", "    ", text)
    for key in ReleaseOptions.model_fields:
        assert f"\n    {key}: " in commented, key
    everything = yaml.safe_load(commented[commented.index("  release:") :])["release"]
    validate_declaration(ReleaseDeclaration, {**yaml.safe_load(text)["attributes"], "release": everything}, written)
