"""Tests of finding the files of a blend's datasets."""

import os
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.errors import ConfigError, SourceError
from dataprep_assets.pipelines.blend.data_blend import BlendDataset, Unit
from dataprep_assets.pipelines.blend.declaration import SourceAccessDeclaration
from dataprep_assets.pipelines.blend.plan.discovery import (
    DiscoveredDataset,
    discover_dataset,
    discover_splits,
    open_place,
    select_paths,
)
from dataprep_assets.stores.files import sha256_file
from dataprep_assets_tests.fakes.gcs_server import GcsServer
from dataprep_assets_tests.fakes.hub_server import HubServer
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.blend.pipeline import make_texts, write_rows

NOWHERE = SourceAccessDeclaration()


def _unit(path: Path | str, **changes: Any) -> Unit:
    dataset = BlendDataset.model_validate({"name": "d", "path": str(path), **changes})
    return Unit(name="d", dataset=dataset, split=None)


def _found(path: Path | str, sources: SourceAccessDeclaration = NOWHERE, **changes: Any) -> DiscoveredDataset:
    return discover_dataset(_unit(path, **changes), sources)


def _names(found: DiscoveredDataset) -> list[str]:
    return [entry.relpath for entry in found.entries]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (
        "train/part-10.jsonl",
        "train/part-2.jsonl.zst",
        "train-extra/a.json.gz",
        "training/b.parquet",
        "test/c.json",
        "en/validation-00000.parquet",
    ):
        write_rows(tmp_path / name, make_texts("d", 3))
    (tmp_path / "README.md").write_text("# no data")
    (tmp_path / "dataset_infos.json").write_text("{}")
    return tmp_path


def test_a_folder_gives_all_its_data_files_in_natural_order(tree: Path) -> None:
    assert _names(_found(tree)) == [
        "en/validation-00000.parquet",
        "test/c.json",
        "train-extra/a.json.gz",
        "train/part-2.jsonl.zst",
        "train/part-10.jsonl",
        "training/b.parquet",
    ]


def test_compressed_json_is_recognized(tree: Path) -> None:
    """Upstream treats a `.jsonl.zst` as Parquet and fails (docs/formats/blend-json.md#nemotron)."""
    kinds = {entry.relpath: (entry.format, entry.compression) for entry in _found(tree).entries}
    assert kinds["train/part-2.jsonl.zst"] == ("jsonl", "zstd")
    assert kinds["train-extra/a.json.gz"] == ("json", "gzip")
    assert kinds["training/b.parquet"] == ("parquet", None)


def test_a_split_or_subset_must_match_a_whole_part_of_a_path(tree: Path) -> None:
    """Upstream also uses the files of `train-extra/` for the split `train`.

    See docs/formats/blend-json.md#splits-by-name.
    """
    assert _names(_found(tree, split="train")) == ["train/part-2.jsonl.zst", "train/part-10.jsonl"]
    assert _names(_found(tree, subset="en", split="validation")) == ["en/validation-00000.parquet"]


@pytest.mark.parametrize(
    ("paths", "name", "meant"),
    [
        # There is a folder with exactly this name, and a folder with a longer name.
        (["X/a.parquet", "X-Synthetic/a.parquet"], "X", ["X/a.parquet"]),
        (["v1/X/en/a.parquet", "X-Synthetic/a.parquet"], "X", ["v1/X/en/a.parquet"]),
        # There are files with this name, followed by shard numbers in the style of Hugging Face and in other styles.
        (
            ["train-00000-of-00010.parquet", "train-00009-of-00010.parquet", "train-hard-00000-of-00001.parquet"],
            "train",
            ["train-00000-of-00010.parquet", "train-00009-of-00010.parquet"],
        ),
        (
            ["data/X.jsonl.zst", "data/X-more.jsonl", "data/X.00001.json"],
            "X",
            ["data/X.jsonl.zst", "data/X.00001.json"],
        ),
        (["train/a.parquet", "train-00000.parquet", "train-extra/a.parquet"], "train", None),
        # Nothing has exactly this name, so files and folders whose names continue after a separator match.
        (
            ["X-Synthetic/a.parquet", "X.part_00.jsonl", "XY/a.parquet"],
            "X",
            ["X-Synthetic/a.parquet", "X.part_00.jsonl"],
        ),
        (["pretrain-1.jsonl", "train_2.jsonl", "data/trainer.json"], "train", []),
        # The given name itself may contain a separator.
        (["X-Synthetic/a.parquet", "X/a.parquet"], "X-Synthetic", ["X-Synthetic/a.parquet"]),
        (["cpp.part_00.jsonl", "cpp.part_01.jsonl"], "cpp.part_00", ["cpp.part_00.jsonl"]),
    ],
)
def test_whole_parts_have_priority_over_prefixes(paths: list[str], name: str, meant: list[str] | None) -> None:
    assert select_paths(paths, name) == (paths[:2] if meant is None else meant)


def test_globs_and_single_files(tree: Path) -> None:
    assert _names(_found(f"{tree}/train/*.jsonl")) == ["part-10.jsonl"]
    assert _names(_found(f"{tree}/**/part-*")) == ["train/part-2.jsonl.zst", "train/part-10.jsonl"]
    assert _names(_found(f"{tree}/test/c.json")) == ["c.json"]
    assert _names(_found(f"{tree}/test/c.json", split="train")) == ["c.json"]


def test_an_existing_path_is_used_literally_even_if_it_is_a_pattern(tmp_path: Path) -> None:
    folder = tmp_path / "[work]" / "d?"
    for name in ("a[1].jsonl", "a1.jsonl", "b.jsonl"):
        write_rows(folder / name, make_texts(name, 3))
    write_rows(tmp_path / "w" / "d1" / "a1.jsonl", make_texts("another", 3))
    assert _names(_found(folder / "a[1].jsonl")) == ["a[1].jsonl"]
    assert _names(_found(folder / "a*.jsonl")) == ["a1.jsonl", "a[1].jsonl"]
    assert _names(_found(folder)) == ["a1.jsonl", "a[1].jsonl", "b.jsonl"]
    assert _names(_found(tmp_path / "[v-x]" / "d?" / "a1.jsonl")) == ["w/d1/a1.jsonl"]
    with raises(SourceError, folder / "c.jsonl"):
        _found(folder / "c.jsonl")


def test_texts_and_tables_are_read_only_if_the_path_names_them(tmp_path: Path) -> None:
    for name in ("README.txt", "a.csv.gz", "b.csv.gz", "c.parquet", "more/d.csv.gz", "e.arrow"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert _names(_found(str(tmp_path))) == ["c.parquet"]
    assert _names(_found(f"{tmp_path}/**/*")) == ["c.parquet"]
    assert _names(_found(f"{tmp_path}/*.csv.gz")) == ["a.csv.gz", "b.csv.gz"]
    assert _names(_found(f"{tmp_path}/**/*.csv.gz", subset="more")) == ["more/d.csv.gz"]
    found = _found(f"{tmp_path}/e.arrow")
    assert [(entry.relpath, entry.format, entry.compression) for entry in found.entries] == [("e.arrow", "arrow", None)]


@pytest.mark.parametrize(
    ("path", "changes", "values"),
    [
        ("", {"split": "dev"}, ("d.split", "'dev'")),
        ("/*.csv", {}, ("found",)),
        ("/nowhere.jsonl", {}, ("/nowhere.jsonl",)),
        ("/nowhere", {}, ("/nowhere",)),
    ],
)
def test_a_dataset_without_readable_files_is_an_error(
    tree: Path, path: str, changes: dict[str, str], values: tuple[str, ...]
) -> None:
    with raises(SourceError, *values):
        _found(f"{tree}{path}", **changes)


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("gs://b/p", "object_cache"),
        ("az://b/p", "az://b/p"),
        ("hf://org", "hf://organization/name"),
        ("s3://b/p", "object_cache"),
    ],
)
def test_an_unreachable_source_is_named(path: str, complaint: str) -> None:
    with raises(ConfigError, complaint):
        _found(path)


def test_content_identifies_files_and_time_does_not(tree: Path) -> None:
    """Upstream, `touch` changes the plan and repeats all work (docs/migration/nemotron.md)."""
    before = _found(tree).identities
    for path in tree.rglob("*.*"):
        os.utime(path, (1, 1))
    assert _found(tree).identities == before
    (tree / "test" / "c.json").write_text('{"text": "x"}\n')
    assert _found(tree).identities != before
    assert _found(tree).entries[1].sha256 == sha256_file(tree / "test" / "c.json")


def test_the_splits_of_rl_data_are_found_by_path(tree: Path) -> None:
    (tree / "training" / "b.parquet").unlink()
    found = discover_splits(_unit(tree), NOWHERE)
    assert {split: _names(d) for split, d in found.items()} == {
        "train": ["train-extra/a.json.gz", "train/part-2.jsonl.zst", "train/part-10.jsonl"],
        "val": ["en/validation-00000.parquet"],
        "test": ["test/c.json"],
    }
    assert found["val"].unit.name == "d__val"


def test_a_file_in_no_split_or_in_two_is_an_error(tree: Path) -> None:
    with raises(SourceError, "training/b.parquet"):
        discover_splits(_unit(tree), NOWHERE)
    (tree / "training" / "b.parquet").rename(tree / "train" / "test.parquet")
    with raises(SourceError, "two splits"):
        discover_splits(_unit(tree), NOWHERE)


def test_data_without_splits_is_for_training(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", make_texts("d", 1))
    assert list(discover_splits(_unit(tmp_path), NOWHERE)) == ["train"]


def test_a_hub_is_pinned_to_its_commit(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    files = {p.relative_to(tree).as_posix(): p.read_bytes() for p in tree.rglob("*") if p.is_file()}
    with HubServer(files, repo_id="org/d") as hub:
        sources = SourceAccessDeclaration(hub_endpoint=hub.endpoint, hub_cache=tmp_path_factory.mktemp("cache"))
        found = _found("hf://org/d", sources, split="test")
        assert (_names(found), found.commit) == (["test/c.json"], hub.commit)
        assert found.entries[0].sha256 or found.entries[0].etag
        old = hub.commit
        hub.move_branch({**files, "test/c.json": b'{"text": "moved"}\n'})
        assert _found("hf://org/d", sources, split="test").identities != found.identities
        assert _found(f"hf://org/d@{old}", sources, split="test").identities == found.identities


def _is_fetched(found: DiscoveredDataset, sources: SourceAccessDeclaration, tree: Path) -> None:
    """What was found arrives as it is in the tree; nothing is here before."""
    access = open_place(found.unit.dataset, sources).access
    assert access.mirrored
    assert access.bytes_to_fetch(found.entries) == sum(entry.size_bytes for entry in found.entries)
    access.fetch(found.entries)
    assert access.bytes_to_fetch(found.entries) == 0
    for entry in found.entries:
        (original,) = (p for p in tree.rglob(Path(entry.relpath).name) if p.as_posix().endswith(entry.relpath))
        assert sha256_file(access.path(entry)) == sha256_file(original)


def test_a_bucket_is_listed_and_fetched(
    moto: str, tree: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: Any
) -> None:
    boto3 = pytest.importorskip("boto3")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    client = boto3.client("s3", endpoint_url=moto, region_name="us-east-1")
    client.create_bucket(Bucket="data")
    for path in (p for p in tree.rglob("*") if p.is_file()):
        client.upload_file(str(path), "data", f"d/{path.relative_to(tree).as_posix()}")
    sources = SourceAccessDeclaration(
        object_cache=tmp_path_factory.mktemp("cache"), s3_endpoint=moto, s3_region="us-east-1"
    )
    assert _names(_found("s3://data/d", sources, split="test")) == ["test/c.json"]
    assert _names(_found("s3://data/d/train/*.zst", sources)) == ["part-2.jsonl.zst"]
    _is_fetched(_found("s3://data/d", sources, subset="train"), sources, tree)
    (single,) = _found("s3://data/d/test/c.json", sources).entries
    assert (single.relpath, single.etag is not None, single.path) == ("c.json", True, "s3://data/d/test/c.json")


@pytest.mark.parametrize("scheme", ["gs", "gcs"])
def test_a_google_bucket_is_listed_and_fetched(
    tree: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    pytest.importorskip("google.cloud.storage")
    with GcsServer() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "project")
        for path in (p for p in tree.rglob("*") if p.is_file()):
            server.store(f"d/{path.relative_to(tree).as_posix()}", path.read_bytes())
        # The S3 settings of the same blend do not apply to Google Cloud Storage.
        sources = SourceAccessDeclaration(
            object_cache=tmp_path_factory.mktemp("cache"), s3_endpoint="http://127.0.0.1:9", s3_region="us-east-1"
        )
        url = f"{scheme}://{server.bucket}/d"
        assert _names(_found(url, sources)) == _names(_found(tree))
        assert _names(_found(url, sources, split="test")) == ["test/c.json"]
        assert _names(_found(f"{url}/train/*.zst", sources)) == ["part-2.jsonl.zst"]
        assert _names(_found(f"{url}/**/part-*", sources)) == ["train/part-2.jsonl.zst", "train/part-10.jsonl"]
        _is_fetched(_found(url, sources, subset="train"), sources, tree)
        (single,) = _found(f"{url}/test/c.json", sources).entries
        generation = str(server.objects["d/test/c.json"].generation)
        assert (single.relpath, single.etag) == ("c.json", generation)
        assert single.path == f"gs://{server.bucket}/d/test/c.json"
        before = _found(url, sources).identities
        server.store("d/test/c.json", b'{"text": "replaced"}\n')
        assert _found(url, sources).identities != before


@pytest.mark.parametrize("place", ["declared by name", "a folder of a declaration", "artifacts", "an artifact"])
def test_a_dataset_is_refused_as_a_source_of_a_blend_in_favor_of_a_schedule(place: str, tmp_path: Path) -> None:
    (tmp_path / "defs" / "pages").mkdir(parents=True)
    (tmp_path / "defs" / "pages" / "defs.yaml").write_text("type: x")
    write_rows(tmp_path / "artifacts" / "pages" / "tags" / "rows.parquet", make_texts("d", 3))
    (tmp_path / "artifacts" / "pages" / "tags" / "receipt.json").write_text("{}")
    path = {
        "declared by name": tmp_path / "defs" / "blend" / "pages",
        "a folder of a declaration": tmp_path / "defs" / "pages",
        "artifacts": tmp_path / "artifacts" / "pages",
        "an artifact": tmp_path / "artifacts" / "pages" / "tags",
    }[place]
    with raises(SourceError, "d.path", "TrainingSchedule", "`sources`"):
        _found(path)


def test_data_next_to_a_declaration_or_selected_from_an_artifact_is_a_source(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "defs.yaml").write_text("type: x")
    (tmp_path / "pages" / "receipt.json").write_text("{}")
    write_rows(tmp_path / "pages" / "rows.parquet", make_texts("d", 3))
    assert _names(_found(tmp_path / "pages" / "*.parquet")) == ["rows.parquet"]
    (tmp_path / "pages" / "receipt.json").unlink()
    assert _names(_found(tmp_path / "pages")) == ["rows.parquet"]


@pytest.mark.parametrize(
    ("key", "value"),
    [("s3_endpoint", "store.example:9000"), ("hub_endpoint", "hub.example"), ("s3_region", "us east")],
)
def test_a_wrong_server_or_region_is_named_by_its_key(key: str, value: str, tmp_path: Path) -> None:
    sources = SourceAccessDeclaration.model_validate({"object_cache": tmp_path, key: value})
    with raises(ConfigError, f"sources.{key}: ", repr(value)):
        open_place(_unit("s3://bucket/x").dataset, sources)
