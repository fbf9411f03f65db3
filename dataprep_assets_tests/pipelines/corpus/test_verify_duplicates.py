"""`verify_path` finds nothing wrong with a corpus with duplicates, whatever was done to its source since the last
build.
"""

import random
from pathlib import Path

import pytest

from dataprep_assets.curation.retractions import Retraction, add_retractions
from dataprep_assets.integrity.verify import VerifiedArtifact, verify_path
from dataprep_assets.tokenization.document_ids import DocumentIds, hash_id
from dataprep_assets_tests.curation.signed import draw_page, replace_one
from dataprep_assets_tests.pipelines.corpus.selected import Selected

pytest.importorskip("rensa", reason="the extra `duplicates`")
DRAW = random.Random(3)
BOOKS = [draw_page(DRAW) for _ in range(9)]
PAGES = [*(replace_one(words, DRAW) for words in BOOKS[:2]), *(draw_page(DRAW) for _ in range(6))]
VERSION = " ".join(replace_one(PAGES[4], DRAW))


def texts(pages: list[list[str]]) -> list[str]:
    return [" ".join(words) for words in pages]


def told(selected: Selected) -> dict[str, VerifiedArtifact]:
    """What is said of artifacts that differ, by name."""
    return {one.name: one for one in verify_path(selected.folder.parent) if one.defects or one.changed_inputs}


@pytest.fixture
def books(tmp_path: Path) -> Selected:
    made = Selected(tmp_path / "shelf", dataset="books", retractions=tmp_path / "books.jsonl")
    made.store = Selected(tmp_path / "desk").store
    made.write({"train/a.jsonl": texts(BOOKS[:5]), "train/b.jsonl": texts(BOOKS[5:])})
    made.build()
    return made


@pytest.fixture
def pages(books: Selected, tmp_path: Path) -> Selected:
    made = Selected(tmp_path / "desk", duplicates={"against": ["books"]}, retractions=tmp_path / "pages.jsonl")
    made.write({"train/a.jsonl": texts(PAGES[:4]), "train/b.jsonl": texts(PAGES[4:])})
    made.build()
    assert made.dropped()
    return made


def test_after_a_build_an_append_a_removal_and_a_lost_file(pages: Selected) -> None:
    assert told(pages) == {}
    pages.write({"train/c.jsonl": [VERSION]})
    assert pages.build()
    assert told(pages) == {}
    list_ = pages.corpus.retractions
    assert list_ is not None
    add_retractions(list_, DocumentIds(), [Retraction(hash=f"{hash_id(' '.join(PAGES[4])):016x}")])
    assert "duplicates" in pages.build()
    assert told(pages) == {}
    # Remove a file, so that its shard is obsolete but stays until it is pruned.
    (pages.folder / "data" / "train" / "c.jsonl").unlink()
    assert pages.build()
    assert told(pages) == {}


def test_what_another_dataset_keeps_is_no_artifact_of_that_name(books: Selected, pages: Selected) -> None:
    list_ = books.corpus.retractions
    assert list_ is not None
    add_retractions(list_, DocumentIds(), [Retraction(hash=f"{hash_id(' '.join(BOOKS[0])):016x}")])
    assert books.build() == ["duplicates", "selection/train-00000"]
    assert told(pages) == {}
    assert "duplicates" in pages.build()
    # Change the signatures of `books`, because they are an input of `pages`.
    books.write({"train/a.jsonl": texts(BOOKS[1:5])})
    books.build()
    assert {name: (one.defects, one.changed_inputs) for name, one in told(pages).items()} == {
        "pages/duplicates": ((), ("books:signatures/train-00000",))
    }
    pages.build()
    assert told(pages) == {}
