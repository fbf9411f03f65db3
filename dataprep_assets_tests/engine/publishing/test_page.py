"""The metadata of a published page: the data files of each product and split, and the license."""

import pytest
import yaml

from dataprep_assets.engine.publishing.page import encode_page, list_configs
from dataprep_assets.integrity.receipt import FileRecord, Receipt


def built(artifact: str, *paths: str, partition: str | None = None) -> Receipt:
    files = tuple(FileRecord(path=path, bytes=1, sha256="0" * 64) for path in paths)
    return Receipt(dataset="fruit", artifact=artifact, partition=partition, key="k", inputs={}, files=files)


def metadata(page: bytes) -> dict[str, object]:
    loaded: dict[str, object] = yaml.safe_load(page.decode().split("---\n")[1])
    return loaded


@pytest.mark.parametrize(
    ("paths", "patterns"),
    [
        (("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"), ["data/train-*.parquet"]),
        (("splits/train/000__a__shard.parquet", "blend.json", "realised.json"), ["splits/train/*.parquet"]),
        (("splits/train.jsonl.zst",), ["splits/train.jsonl.zst"]),
        (("train.jsonl", "dataset_info.json"), ["train.jsonl"]),
        (("train.jsonl", "train/data-00000-of-00001.parquet"), ["train/*.parquet"]),
        (("train/data-00000-of-00001.arrow", "train/state.json", "dataset_dict.json"), ["train/*.arrow"]),
    ],
)
def test_the_data_files_of_each_layout_are_found(paths: tuple[str, ...], patterns: list[str]) -> None:
    (config,) = list_configs([built("view", *paths)], ["train"])
    assert config == {
        "config_name": "view",
        "data_files": [{"split": "train", "path": [f"view/{pattern}" for pattern in patterns]}],
        "default": True,
    }


@pytest.mark.parametrize(
    "path", ["train.bin", "quarantine.jsonl", "datasets/a/0123/shard.parquet", "train/deep/a.parquet", "index.json"]
)
def test_other_files_are_no_data_files(path: str) -> None:
    assert list_configs([built("view", path)], ["train"]) == []


def test_the_first_product_with_data_files_is_the_default() -> None:
    products = [built("bins", "train.bin"), built("b", "train.jsonl"), built("a", "splits/train.jsonl", partition="r1")]
    configs = list_configs(products, ["train"])
    assert [(config["config_name"], config.get("default")) for config in configs] == [("b", True), ("a", None)]
    assert configs[1]["data_files"] == [{"split": "train", "path": ["a/r1/splits/train.jsonl"]}]


def test_splits_keep_their_declared_order() -> None:
    view = built("view", "test.jsonl", "train.jsonl", "validation.jsonl")
    (config,) = list_configs([view], ["train", "test"])
    assert [files["split"] for files in config["data_files"]] == ["train", "test", "validation"]


def test_a_page_without_data_files_has_no_viewer() -> None:
    page = encode_page("# Fruit\n", configs=[], licenses=[])
    assert metadata(page) == {"viewer": False}
    assert page.endswith(b"---\n\n# Fruit\n")


@pytest.mark.parametrize(
    ("licenses", "described"),
    [
        (["MIT"], {"license": ["mit"]}),
        (["CC0-1.0", "Apache-2.0"], {"license": ["cc0-1.0", "apache-2.0"]}),
        (["CC0-1.0 OR MIT"], {"license": "other", "license_name": "CC0-1.0 OR MIT"}),
        (["MIT", "Our terms"], {"license": "other", "license_name": "MIT, Our terms"}),
    ],
)
def test_licenses_that_the_hub_does_not_know_are_named(licenses: list[str], described: dict[str, object]) -> None:
    assert metadata(encode_page("", configs=[], licenses=licenses)) == {**described, "viewer": False}
