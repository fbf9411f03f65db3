"""Duplicates in a project of `dataprep init`: what goes and why, what an append and a retraction reach, what blocks."""

import json
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep_assets_tests.documents.signed import edited, one_other, page
from dataprep_assets_tests.pipelines.corpus.coast import Coast, write_lines

pytest.importorskip("rensa", reason="the extra `duplicates`")
pytestmark = pytest.mark.slow


def lines(texts: Sequence[Sequence[str]], source: str = "web") -> list[dict[str, Any]]:
    """Records of texts that are given as words."""
    return [{"text": " ".join(words), "meta": {"set": source, "score": len(words)}} for words in texts]


class Pages(Coast):
    """A corpus of three files, one a shard: pages, versions of the first ten of them, and copies of others."""

    def __init__(self, root: Path, **changes: Any) -> None:
        super().__init__(root)
        shutil.rmtree(self.folder / "data")
        draw = random.Random(1)
        self.pages = [page(draw) for _ in range(40)]
        self.versions = [one_other(words, draw) for words in self.pages[:10]]
        self.changes = {
            "tag": None,
            "keep": None,
            "drop": None,
            "document": {
                "separator": "<|endoftext|>",
                "source_field": "meta.set",
                "keep_fields": {"meta.score": "number"},
            },
            "duplicates": {},
            **changes,
        }
        self.file("a", lines(self.pages[:20]))
        self.file("b", lines(self.pages[20:]))
        self.file("c", [*lines(self.versions, "mirror"), *lines(self.pages[30:33], "mirror"), "{no json"])
        self.declare()

    def file(self, name: str, records: list[Any], split: str = "train") -> None:
        """Write a source file."""
        write_lines(self.folder / f"data/{split}/{name}.jsonl", records)

    def declare(self, **changes: Any) -> None:
        super().declare(**{**getattr(self, "changes", {}), **changes})

    def kept(self) -> list[str]:
        """The texts of the kept rows, sorted."""
        found = []
        for row in self.table().to_pylist():
            if row["kept"]:
                text = (self.folder / "data" / row["file"]).read_text().splitlines()[row["row"] - 1]
                found.append(json.loads(text)["text"])
        return sorted(found)

    def table(self) -> pa.Table:
        folder = self.root.parent / "artifacts" / "pages" / "documents"
        return pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("*/documents.parquet"))])

    def duplicates(self) -> dict[str, bytes]:
        """The files of the duplicates but for what tells of their making."""
        folder = self.root.parent / "artifacts" / "pages" / "duplicates"
        return {one.name: one.read_bytes() for one in sorted(folder.iterdir()) if one.name != "receipt.json"}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    found = Pages(tmp_path_factory.mktemp("pages") / "coast")
    assert "nothing to correct" in found("check", "pages")
    found("run", "pages")
    return found


def test_of_documents_that_are_alike_one_is_kept_and_the_table_names_it(pages: Pages) -> None:
    rows = pages.table().to_pylist()
    reasons = Counter(row["reason"] for row in rows)
    assert reasons == {None: 40, "duplicate": 13, "bad_json": 1}
    at = {f"{row['file']}:{row['row']}": row for row in rows}
    for row in rows:
        if row["reason"] == "duplicate":
            assert at[row["representative"]]["kept"]
            assert 0.8 <= row["similarity"] <= 1
            assert row["tokens"] is None
        else:
            assert row["representative"] is row["similarity"] is None
    assert sum(row["similarity"] == 1 for row in rows if row["similarity"]) == 3
    ledgers = [pages.receipt("token_bins", name).ledger for name in pages.made("token_bins")]
    assert sum(one.dropped.get("duplicate", 0) for one in ledgers if one is not None) == 13


def test_commands_tell_of_duplicates(pages: Pages) -> None:
    assert len(pages("documents", "pages", "--reason", "duplicate", "--csv").splitlines()) == 14
    row = next(one for one in pages.table().to_pylist() if one["reason"] == "duplicate" and one["similarity"] < 1)
    said = pages("trace", "pages", "--file", row["file"], "--row", str(row["row"]), code=1)
    assert f"is a duplicate of {row['representative']}, {row['similarity']:.1%} alike" in said
    assert "all is up to date" in pages("run", "pages")


def test_the_kept_texts_are_the_same_for_other_files_shards_and_workers(pages: Pages, tmp_path: Path) -> None:
    other = Pages(tmp_path / "coast", workers=1, shards={"count": 2})
    everything = [*lines(pages.pages), *lines(pages.versions, "mirror"), *lines(pages.pages[30:33], "mirror")]
    shutil.rmtree(other.folder / "data")
    random.Random(2).shuffle(everything)
    for number in range(5):
        other.file(f"{9 - number}", everything[number::5])
    other("run", "pages")
    assert other.kept() == pages.kept()


def test_what_is_appended_gives_way_and_only_its_shard_is_made(tmp_path: Path) -> None:
    pages = Pages(tmp_path / "coast")
    pages("run", "pages")
    kept, bins, signed = pages.kept(), pages.made("token_bins"), pages.made("signatures")
    draw = random.Random(7)
    new = page(draw)
    pages.file("d", lines([*(one_other(words, draw) for words in pages.pages[:20]), new], "late"))
    pages("run", "pages")
    assert pages.kept() == sorted([*kept, " ".join(new)])
    assert {name: when for name, when in pages.made("token_bins").items() if name in bins} == bins
    assert {name: when for name, when in pages.made("signatures").items() if name in signed} == signed
    assert "all is up to date" in pages("run", "pages")
    # the same from nothing, given which file came later
    before = pages.duplicates()
    assert json.loads(before["ages.json"])["train/d.jsonl"] == 1


def test_by_a_column_appends_and_one_build_give_the_same_bytes(tmp_path: Path) -> None:
    by_score = {"duplicates": {"priority": {"column": "meta_score", "order": "lowest"}}}
    one, other = Pages(tmp_path / "one/coast", **by_score), Pages(tmp_path / "other/coast", **by_score)
    draw = random.Random(8)
    late = [edited(words, draw, 0.005) for words in one.pages[:30]]
    (other.folder / "data/train/c.jsonl").rename(tmp_path / "c.jsonl")
    other("run", "pages")
    (tmp_path / "c.jsonl").rename(other.folder / "data/train/c.jsonl")
    other("run", "pages")
    for project in (one, other):
        project.file("d", lines(late, "late"))
        project("run", "pages")
    assert one.duplicates() == other.duplicates()
    assert one.kept() == other.kept()


def test_a_retracted_document_brings_back_what_it_stood_for_and_that_is_said_before(tmp_path: Path) -> None:
    pages = Pages(tmp_path / "coast")
    pages("run", "pages")
    gone = [one for one in pages.table().to_pylist() if one["reason"] == "duplicate" and one["similarity"] < 1]
    stands = gone[0]["representative"]
    ids = pages.root / "ids.txt"
    ids.write_text(stands + "\n")
    said = pages("retract", "pages", "--ids", str(ids))
    assert "1 document that it stands for comes back" in said
    assert "1 document comes back" in pages("run", "pages")
    row = next(
        one for one in pages.table().to_pylist() if (one["file"], one["row"]) == (gone[0]["file"], gone[0]["row"])
    )
    assert row["kept"]
    back = {f"{one['file']}:{one['row']}": one for one in pages.table().to_pylist()}[stands]
    assert back["reason"] == "retracted"


def test_documents_of_the_validation_split_block_or_leave_train(tmp_path: Path) -> None:
    splits = {"train": ["train/**"], "val": ["val/**"]}
    pages = Pages(tmp_path / "coast", splits=splits)
    draw = random.Random(5)
    pages.file("v", lines([one_other(pages.pages[25], draw), page(draw)]), "val")
    said = pages("run", "pages", code=1)
    assert "splits_disjoint" in said
    assert "train/b.jsonl:6 of train is" in said.replace("\n", " ")
    assert "declare `duplicates.across_splits: drop`" in " ".join(said.split())
    assert not (pages.root.parent / "artifacts" / "pages" / "token_bins").exists()
    pages.declare(duplicates={"across_splits": "drop"})
    pages("run", "pages")
    rows = [one for one in pages.table().to_pylist() if one["representative"] == "val/v.jsonl:1"]
    assert [(one["file"], one["row"]) for one in rows] == [("train/b.jsonl", 6)]
    pages.declare(duplicates={"across_splits": "ignore"})
    pages("run", "pages")
    assert not [one for one in pages.table().to_pylist() if one["representative"] == "val/v.jsonl:1"]


def test_a_budget_holds_for_duplicates_too_and_names_the_source(tmp_path: Path) -> None:
    pages = Pages(tmp_path / "coast", budget={"per_source": 0.5})
    said = " ".join(pages("run", "pages", code=1).split())
    assert "of the source mirror rules drop 13 of 13 documents (100.00%), most of them duplicate" in said or (
        "of the source mirror rules drop" in said
    )
    assert not (pages.root.parent / "artifacts" / "pages" / "token_bins").exists()
    pages.declare(budget={"per_rule": {"duplicate": 0.5}})
    pages("run", "pages")


def test_rules_come_first_and_what_they_drop_stands_for_nothing(tmp_path: Path) -> None:
    pages = Pages(tmp_path / "coast", drop={"mirrors": "source == 'web'"})
    pages("run", "pages")
    reasons = Counter(row["reason"] for row in pages.table().to_pylist())
    assert reasons == {"mirrors": 40, None: 13, "bad_json": 1}


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"kind": "exact", "threshold": 0.9}, "`threshold` has no effect on `kind: exact`"),
        ({"threshold": 0.05, "permutations": 16}, "permutations find"),
        ({"priority": {"column": "qualty"}}, "there is no column 'qualty'"),
        ({"priority": {"column": "source"}}, "give a list of its values in `order`"),
        ({"priority": {"column": "meta_score", "order": ["a"]}}, "give `highest` or `lowest`"),
    ],
)
def test_a_declaration_without_effect_is_refused(tmp_path: Path, declared: dict[str, Any], said: str) -> None:
    pages = Pages(tmp_path / "coast", duplicates=declared)
    assert said in " ".join(pages("check", "pages", code=2).split())
