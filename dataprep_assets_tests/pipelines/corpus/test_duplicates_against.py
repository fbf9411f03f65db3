"""Duplicates of other datasets in the same storage: dropped rows, the effects of changes there, and refused
declarations.
"""

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from dataprep_assets.curation.duplicates.words import WORDS
from dataprep_assets.curation.retractions import Retraction, add_retractions
from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.errors import ConfigError, DataprepError, MissingArtifactError
from dataprep_assets.integrity.receipt import record_files
from dataprep_assets.pipelines.corpus.dataset import corpus_specs
from dataprep_assets.tokenization.document_ids import DocumentIds, hash_id
from dataprep_assets_tests.curation.signed import draw_page, replace_one
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.corpus.coast import Coast, write_lines
from dataprep_assets_tests.pipelines.corpus.selected import Selected

pytest.importorskip("rensa", reason="the extra `duplicates`")
TWO_SPLITS = {"train": ["train/**"], "val": ["val/**"]}


class Shelf:
    """Two corpora in one storage: `books` of thirty texts, and `pages` with versions and copies of some of them."""

    def __init__(self, folder: Path) -> None:
        draw = random.Random(4)
        self.folder = folder
        self.texts = [draw_page(draw) for _ in range(30)]
        self.own = [draw_page(draw) for _ in range(12)]
        self.versions = [replace_one(words, draw) for words in self.texts[:8]]
        self.pages_files = {
            "train/a.jsonl": [" ".join(one) for one in (*self.own[:8], *self.versions)],
            "train/b.jsonl": [" ".join(one) for one in (*self.own[6:], *self.texts[20:23])],
            "val/c.jsonl": [" ".join(one) for one in (self.versions[0], self.texts[25])],
        }

    def books(self, **declared: Any) -> Selected:
        made = Selected(self.folder / "shelf", dataset="books", **declared)
        made.store = self.pages().store
        return made

    def pages(self, folder: str = "desk", **duplicates: Any) -> Selected:
        settings = {"against": ["books"], "across_splits": "ignore", **duplicates}
        return Selected(self.folder / folder, splits=TWO_SPLITS, duplicates=settings)

    def make(self) -> None:
        self.books().write({f"train/{at}.jsonl": [" ".join(one) for one in self.texts[at::3]] for at in range(3)})
        self.books().build()
        self.pages().write(self.pages_files)
        self.pages().build()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    shelf = Shelf(tmp_path_factory.mktemp("shelf"))
    shelf.make()
    return shelf


@pytest.fixture
def shelf(made: Shelf, tmp_path: Path) -> Shelf:
    """Return a copy that a test may change."""
    shutil.copytree(made.folder, tmp_path / "copy")
    return Shelf(tmp_path / "copy")


def passes(selected: Selected) -> bool:
    return all(one.passed for one in selected.findings().values())


def test_duplicates_of_another_dataset_are_dropped_from_every_split_and_named_with_it(made: Shelf) -> None:
    dropped = made.pages().dropped()
    by_books = [one for one in dropped if one["representative"].startswith("books:train/")]
    # In train, 8 versions and 3 copies are dropped, and in val one of each. Two more rows are dropped, because two of
    # the dataset's own documents are in both files of train.
    assert len(by_books) == 13
    assert len(dropped) == 15
    texts = {f"books:train/{at % 3}.jsonl:{at // 3 + 1}": " ".join(one) for at, one in enumerate(made.texts)}
    files = made.pages_files
    for one in by_books:
        same = texts[one["representative"]] == files[one["file"]][one["row"] - 1]
        assert same == (one["similarity"] == 1)
        assert one["similarity"] > 0.9
    assert passes(made.pages())
    facts = made.pages().store.require(made.pages().corpus.artifact("duplicates")).facts
    assert facts["against"] == {"books": 13}
    assert facts["removed"] == {"train": 13, "val": 2}
    assert made.pages().build() == []
    assert made.books().build() == []


@pytest.mark.parametrize("across", ["drop", "block", "ignore"])
@pytest.mark.parametrize("kind", ["near", "exact"])
def test_the_other_dataset_decides_for_any_splits_and_shards(shelf: Shelf, across: str, kind: str) -> None:
    shelf.books(duplicates={"kind": kind}).build()
    gone = []
    for shards in ({"target_bytes": 1}, {"count": 1}):
        settings = {"against": ["books"], "across_splits": across, "kind": kind}
        pages = Selected(
            shelf.folder / str(shards), splits=TWO_SPLITS, shards={**shards, "on_change": "replan"}, duplicates=settings
        )
        pages.store = shelf.pages().store
        pages.write(shelf.pages_files)
        pages.build()
        dropped = pages.dropped(planned=True)
        gone.append(sorted(f"{one['file']}:{one['row']} {one['representative']}" for one in dropped))
        assert sum(one["representative"].startswith("books:") for one in dropped) == (13 if kind == "near" else 4)
        # A text that both splits contain, but the other dataset does not, stays in both splits.
        wrong = [name for name, one in pages.findings().items() if not one.passed]
        assert wrong == (["splits_disjoint"] if (kind, across) == ("exact", "block") else [])
    assert gone[0] == gone[1]


def test_rows_that_the_other_dataset_drops_or_retracts_remove_no_duplicates(shelf: Shelf) -> None:
    listed = shelf.folder / "retracted.jsonl"
    text = " ".join(shelf.texts[0])
    add_retractions(listed, DocumentIds(), [Retraction(hash=f"{hash_id(text):016x}")])
    before = shelf.pages().bytes()
    shelf.books(retractions=listed).build()
    told = {f"{one.name}": one.reason for one in find_stale(corpus_specs(shelf.pages().corpus), shelf.pages().store)}
    assert told["pages/duplicates"].startswith("its source changed: kept rows of books/train-0000")
    pages = shelf.pages()
    # The near-duplicate of the retracted text is restored in both splits, because `across_splits` is `ignore`.
    assert [one for one in pages.build() if one != "duplicates"] == ["selection/train-00000", "selection/val-00000"]
    assert pages.warnings == ["pages/duplicates: 2 documents were restored, because their kept duplicates were removed"]
    assert len(pages.dropped()) == 13
    assert passes(pages)
    listed.unlink()
    shelf.books().build()
    shelf.pages().build()
    assert shelf.pages().bytes() == before


def test_an_append_there_changes_only_the_shards_with_such_a_document(shelf: Shelf) -> None:
    before = shelf.pages().bytes()
    shelf.books().write({"train/new.jsonl": [" ".join(draw_page(random.Random(9))), " ".join(shelf.own[0])]})
    shelf.books().build()
    pages = shelf.pages()
    assert pages.build() == ["duplicates", "selection/train-00000"]
    (new,) = [one for one in pages.dropped() if one["representative"] == "books:train/new.jsonl:2"]
    assert new["file"] == "train/a.jsonl"
    assert (new["row"], new["similarity"]) == (1, 1)
    assert passes(pages)
    # The result equals a build from nothing. If the new file is removed, the result is the same as before.
    after = pages.bytes()
    shutil.rmtree(shelf.folder / "desk/artifacts/pages")
    shelf.pages().build()
    assert shelf.pages().bytes() == after
    (shelf.folder / "shelf/data/train/new.jsonl").unlink()
    shelf.books().build()
    shelf.pages().build()
    assert shelf.pages().bytes() == before


def test_of_two_other_datasets_the_first_counts_and_their_common_duplicates_stay(shelf: Shelf) -> None:
    more = Selected(shelf.folder / "more", dataset="more")
    more.store = shelf.pages().store
    more.write({"train/0.jsonl": [" ".join(one) for one in (*shelf.versions, shelf.own[9])]})
    more.build()
    assert more.dropped() == []
    pages = shelf.pages(against=["more", "books"])
    pages.build()
    facts = pages.store.require(pages.corpus.artifact("duplicates")).facts
    # `more` contains the versions verbatim, and texts that `more` lacks are compared with `books`.
    assert facts["against"] == {"more": 10, "books": 4}
    assert passes(pages)
    # Each row is dropped only once, even if both other datasets contain its text.
    assert len(pages.dropped()) == len({(one["file"], one["row"]) for one in pages.dropped()}) == 16


def test_a_check_fails_if_a_named_duplicate_in_another_dataset_is_not_similar(shelf: Shelf) -> None:
    pages = shelf.pages()
    artifact = pages.corpus.artifact("duplicates")
    directory = pages.store.local(artifact)
    path = directory / "val-00000.parquet"
    table = pq.read_table(path)
    names = table["representative"].to_pylist()[::-1]
    pq.write_table(table.set_column(1, table.schema.field(1), [names]), path)
    bits = np.fromfile(directory / "train-00001.kept.bin", np.uint8)
    (bits ^ 128).tofile(directory / "train-00001.kept.bin")
    files = tuple(one for one in record_files(directory, {}) if one.path != "receipt.json")
    replace(pages.store.require(artifact), files=files).write(directory)
    found = pages.findings()["rebuild_matches"]
    assert not found.passed
    told = found.summary + str([dict(row) for row in found.table])
    assert_names(told, "val-00000.parquet", 1)
    assert "train-00001.kept.bin: byte 0 differs" in told


def test_requirements_for_the_other_dataset_are_reported(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(error: type[DataprepError], *values: object, **duplicates: Any) -> None:
        with raises(error, *values):
            shelf.pages(**duplicates).build()

    refused(MissingArtifactError, "pages", "duplicates.against", "maps", "dataprep run maps", against=["maps"])
    refused(ConfigError, "`duplicates.shingle`", 5, 4, shingle=4)
    refused(ConfigError, "`duplicates.kind`", kind="exact")
    refused(ConfigError, "`duplicates.threshold` or `duplicates.permutations`", threshold=0.7)
    with monkeypatch.context() as later:
        later.setattr("dataprep_assets.curation.duplicates.signatures.WORDS", WORDS + 1)
        refused(ConfigError, "books", WORDS, "dataprep run books")
    with raises(ValidationError, "pages", "dataset"):
        shelf.pages(against=["pages"]).build()
    with raises(ValidationError, "books", "twice"):
        shelf.pages(against=["books", "books"]).build()
    # Rebuild the signatures of `books`, but restore its old duplicates.
    books = shelf.books()
    directory = books.store.directory(books.corpus.artifact("duplicates"))
    shutil.copytree(directory, shelf.folder / "before")
    books.write({"train/0.jsonl": [" ".join(one) for one in shelf.own]})
    books.build()
    shutil.rmtree(directory)
    shutil.copytree(shelf.folder / "before", directory)
    refused(MissingArtifactError, "signatures of train-00000 changed after the duplicates were found")


class Library(Coast):
    """A `dataprep init` project with two corpora: `books`, and `pages` with versions of ten of its texts."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        shutil.rmtree(self.folder / "data")
        draw = random.Random(2)
        texts = [draw_page(draw) for _ in range(20)]
        self.declare_books()
        write_lines(self.folder.parent / "books/data/train/a.jsonl", [{"text": " ".join(one)} for one in texts])
        versions = [{"text": " ".join(replace_one(one, draw))} for one in texts[:10]]
        write_lines(self.folder / "data/train/b.jsonl", [*versions, {"text": " ".join(draw_page(draw))}])
        self.declare_pages(against=["books"])

    def declare_pages(self, **duplicates: Any) -> None:
        nothing = {"tag": None, "keep": None, "drop": None, "document": {"separator": "<|endoftext|>"}}
        self.declare(**nothing, duplicates=duplicates)

    def declare_books(self, **duplicates: Any) -> None:
        pages, self.folder = self.folder, self.folder.parent / "books"
        nothing = {"tag": None, "keep": None, "drop": None, "document": {"separator": "<|endoftext|>"}}
        self.declare(dataset="books", **nothing, duplicates=duplicates)
        self.folder = pages


@pytest.mark.slow
def test_commands_show_the_dataset_that_a_corpus_is_compared_with(tmp_path: Path) -> None:
    library = Library(tmp_path / "coast")
    assert "no errors found" in library("check")
    said = library("run", "pages", code=1)
    assert "duplicates.against: books: missing: " in said
    assert "dataprep run books" in said
    library("run", "books", "pages")
    rows = [row for row in library.table().to_pylist() if not row["kept"]]
    assert len(rows) == 10
    assert {row["representative"].partition(":")[0] for row in rows} == {"books"}
    ids = library.root / "ids.txt"
    ids.write_text(rows[0]["representative"].removeprefix("books:") + "\n")
    said = library("retract", "books", "--ids", str(ids))
    assert "downstream: pages/duplicates, built from books/duplicates" in said
    library("run", "books")
    assert_names(library("status", "pages", code=1), "books/train-00000")
    library("run", "pages")
    assert sum(row["kept"] for row in library.table().to_pylist()) == 2


@pytest.mark.slow
def test_two_corpora_that_are_compared_with_each_other_are_refused(tmp_path: Path) -> None:
    library = Library(tmp_path / "coast")
    library.declare_books(against=["pages"])
    said = library("check", "pages", code=2)
    assert "defs.yaml:" in said
    assert_names(said, "`duplicates.against`", "books", "pages")
    assert_names(library("run", "pages", code=2), "neither")
