"""Datasets of a blend and benchmarks have the same keys for reading texts and tables as corpora."""

from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.curation.benchmarks.decontamination import DeclaredSet
from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.blend.data_blend import DataBlend
from dataprep_assets.pipelines.blend.remarks import find_blend_remarks
from dataprep_assets.pipelines.blend.sft.shard import PackedSftFacts
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.blend.dagster_blend import (
    REFERENCE,
    declare_chats,
    find_failed,
    open_blend,
    read_evaluations,
)
from dataprep_assets_tests.pipelines.blend.pipeline import declare_pretraining, finish_blend

KEYS: dict[str, dict[str, Any]] = {
    "tsv": {"csv_quotes": False},
    "csv": {"csv_delimiter": ";"},
    "txt": {"text_separator": "\n"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write files with 40 documents each; without the keys, they are read as fewer or as one."""
    texts = [f'"a, b {i}' if i % 2 else f'plain {i}"' for i in range(40)]
    (tmp_path / "a.tsv").write_text("text\tid\n" + "".join(f"{text}\t{i}\n" for i, text in enumerate(texts)))
    (tmp_path / "b.csv").write_text("id;text\n" + "".join(f'{i};"text, of {i}"\n' for i in range(40)))
    (tmp_path / "c.txt").write_text("\n".join(f"line {i}" for i in range(40)))
    return tmp_path


def datasets(folder: Path, **keys: dict[str, Any]) -> dict[str, Any]:
    return {
        "datasets": [
            {"name": name, "path": str(path), **keys.get(name, {})}
            for path in sorted(folder.iterdir())
            for name in [path.suffix[1:]]
        ]
    }


def remarks(folder: Path, **keys: dict[str, Any]) -> list[Remark]:
    return list(find_blend_remarks(declare_pretraining(folder, blend=datasets(folder, **keys))))


def test_a_blend_reads_its_files_as_declared(folder: Path, tmp_path: Path) -> None:
    declaration = declare_pretraining(
        folder, blend=datasets(folder, **KEYS), pretrain={"separator": "<|endoftext|>"}, num_shards=3
    )
    assert list(find_blend_remarks(declaration)) == []
    directory, _, plan = finish_blend(declaration, tmp_path / "root")
    store = LocalArtifacts(tmp_path / "root")
    for unit in plan.units:
        receipts = [store.require(declaration.artifact("indexed_bins", partition)) for partition in unit.partitions]
        ledgers = [receipt.ledger for receipt in receipts if receipt.ledger is not None]
        assert (len(ledgers), sum(ledger.documents for ledger in ledgers)) == (3, 40), unit.name
        assert unit.plan_hash in str([*directory.rglob("plan.json")])


def test_without_the_keys_the_message_about_a_wrong_file_names_them(folder: Path) -> None:
    told = {
        key: [one.sentence for one in remarks(folder, **{k: v for k, v in KEYS.items() if k != key})] for key in KEYS
    }
    assert "`csv_quotes: false`" in told["tsv"][0]
    assert "`csv_delimiter`" in told["csv"][0]
    # A text file without `text_separator` is one document, which is not an error.
    assert told["txt"] == []
    (folder / "b.csv").write_text('id;text\n1;"one\n2;two"\n3;three\n')
    assert any(one.hint and one.keys[-1] == "csv_quotes" for one in remarks(folder, csv=KEYS["csv"]))


def test_a_benchmark_is_read_as_declared(folder: Path) -> None:
    whole = DeclaredSet(path="b.csv").build_set("b", folder)
    read = DeclaredSet(path="b.csv", fields=("text",), **KEYS["csv"]).build_set("b", folder)
    assert (whole.settings, read.settings) == ({}, {"csv_delimiter": ";"})
    assert [item.parts[0].text for item in read.read_items(2)] == ["text, of 0", "text, of 1"]
    with raises(ConfigError, "csv_delimiter"):
        DeclaredSet(path="b.csv", fields=("text",)).build_set("b", folder).read_items()


def test_a_dataset_without_the_field_reports_the_format_of_its_file(folder: Path) -> None:
    (folder / "d.json").write_text('{"data": [{"text": "one"}, {"text": "two"}]}')
    (folder / "b.csv").write_text("id;text\n1\n2\n")
    told = {one.keys[2]: one.sentence for one in remarks(folder, tsv=KEYS["tsv"]) if not one.hint}
    assert told.keys() == {1, 3}
    assert "`csv_delimiter`" in told[1]
    assert "jq -c" in told[3]


def test_chats_are_read_as_declared(tmp_path: Path) -> None:
    declaration = declare_chats(tmp_path / "sources", num_shards=1)
    table = tmp_path / "c.csv"
    table.write_text("prompt;completion\n" + "".join(f"question, {i};answer, {i}\n" for i in range(40)))
    source = {"name": "table", "path": str(table), "csv_delimiter": ";"}
    datasets = {"blend": DataBlend.model_validate({"datasets": [source]})}
    with open_blend(declaration.model_copy(update=datasets), tmp_path / "root") as built:
        assert find_failed(read_evaluations(built.run_all())) == REFERENCE
        (shard,) = built.store.receipts([built.declaration.artifact("packed_sft", p) for p in built.plan.partitions])
        assert shard is not None
        assert PackedSftFacts.from_receipt(shard).conversations == 40
