"""Readers of a publication: `dataprep verify`, `load_dataset`, and Croissant."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from dataprep_assets.cli import main
from dataprep_assets.errors import ConfigError
from dataprep_assets.formats.hf_parquet import read_blocks
from dataprep_assets.sources.hub_store import open_hub_store
from dataprep_assets_tests.engine.publishing.conftest import REPO, Published
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.readers.hf_datasets import load_from_hub

ADDRESS = f"hf://datasets/{REPO}"


@pytest.fixture
def published(corpus: Published, monkeypatch: pytest.MonkeyPatch) -> Published:
    """Return a published corpus on the Hub of the environment."""
    monkeypatch.setenv("HF_ENDPOINT", corpus.hub.endpoint)
    corpus.run()
    return corpus


def test_a_sample_is_published_changed_published_again_verified_and_loaded(
    published: Published, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = published.hub
    (first,) = hub.tags
    splits = {"train": ["train/chunk1/**"], "extra": ["train/chunk2/**"], "val": ["validation/**"], "test": ["test/**"]}
    changed = published.declare(attributes={"splits": splits})
    before = hub.tree
    changed.run()
    data = {path for _, path in hub.operations[1] if path.startswith("hf_parquet_bins/data/")}
    assert data == {f"hf_parquet_bins/data/{split}-00000-of-00001.parquet" for split in ("train", "extra")}
    assert len(hub.operations[1]) < len(hub.tree) < len(before) + 2
    assert main(["verify", ADDRESS]) == 0
    assert_names(capsys.readouterr().out, "publication of sample_corpus")
    (second,) = hub.tags.keys() - {first}
    loaded = load_from_hub(REPO, second, hub.endpoint, tmp_path / "home")
    directory = changed.store.root / "sample_corpus" / "hf_parquet_bins"
    assert {split: columns["input_ids"] for split, columns in loaded.items()} == read_ids(directory, splits)
    assert hub.commits[hub.tags[first]].keys() == before.keys(), "the first revision stays available"


def read_ids(directory: Path, splits: Iterable[str]) -> dict[str, list[list[int]]]:
    """Return the documents of each split of a Parquet view."""
    documents: dict[str, list[list[int]]] = {}
    for split in splits:
        rows = documents.setdefault(split, [])
        for ids, lengths in read_blocks(directory, split):
            values, start = ids.tolist(), 0
            for length in lengths.tolist():
                rows.append(values[start : start + length])
                start += length
    return documents


@pytest.mark.parametrize("name", ["hf_parquet_bins/data/val-00000-of-00001.parquet", "README.md"])
@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_a_damaged_file_on_the_hub_is_found(
    published: Published, name: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = published.hub
    tree = hub.tree
    if damage == "missing":
        del tree[name]
    else:
        tree[name] = tree[name][:-1] + b"!"
    hub.move_branch(tree, parent=hub.commit)
    assert main(["verify", ADDRESS]) == 1
    assert_names(capsys.readouterr().out, "DAMAGED", name.removeprefix("hf_parquet_bins/"))
    tag = next(iter(hub.tags))
    assert main(["verify", f"{ADDRESS}@{tag}"]) == 0, "the tagged revision is intact"


def test_the_verdicts_on_a_repository_are_machine_readable(
    published: Published, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", ADDRESS, "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.get("artifact") or line["publication"] for line in lines] == [
        "sample_corpus/data_card",
        "sample_corpus/hf_parquet_bins",
        "publication of sample_corpus",
    ]
    assert all(line["defects"] == [] for line in lines)


def test_a_repository_without_artifacts_has_nothing_to_verify(
    corpus: Published, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", corpus.hub.endpoint)
    corpus.hub.move_branch({"data.csv": b"1\n"})
    assert main(["verify", ADDRESS]) == 1
    assert_names(capsys.readouterr().err, ADDRESS, "receipt.json")


def test_a_folder_of_a_repository_is_listed_alone(published: Published) -> None:
    store = open_hub_store(f"{ADDRESS}@main/hf_parquet_bins")
    keys = [info.key for info in store.list()]
    assert "receipt.json" in keys
    assert keys == sorted(keys)
    assert [info.key for info in store.list("data/t")] == [
        "data/test-00000-of-00001.parquet",
        "data/train-00000-of-00001.parquet",
    ]


@pytest.mark.parametrize("address", ["hf://datasets/org", "hf://datasets/", "hf://datasets/org/@main"])
def test_an_address_without_a_name_is_refused(address: str) -> None:
    with raises(ConfigError, address, "hf://datasets/organization/name"):
        open_hub_store(address)


def test_croissant_describes_the_published_files(published: Published) -> None:
    tree = published.hub.tree
    described = json.loads(tree["data_card/croissant.json"])
    files = [one for one in described["distribution"] if one["@type"] == "cr:FileObject"]
    assert {one["contentUrl"].removeprefix("../") for one in files} == {
        path for path in tree if path.startswith("hf_parquet_bins/") and not path.endswith("receipt.json")
    }
