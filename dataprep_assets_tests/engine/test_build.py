"""The life of a small artifact: built once, reused while its recipe and files are unchanged, and resumed if
possible.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from dataprep_assets.engine.artifact.build import WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.errors import SourceError
from dataprep_assets.integrity.artifacts import Artifact, LocalArtifacts
from dataprep_assets.integrity.receipt import find_damage, read_receipt
from dataprep_assets.stores.files import sha256_file
from dataprep_assets_tests.engine.notices import NoticeFacts
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.corpus.pipeline import debris

RECIPE = Recipe(
    artifact=Artifact(dataset="d", name="words", partition=None),
    key="1" * 64,
    version=2,
    settings={"greeting": "hello"},
    sources={"a.txt": "2"},
    upstream={"notices/n-0": "3"},
)


class Writer:
    """A writer of one file that counts its calls."""

    def __init__(self, text: str = "hello", error: Exception | None = None) -> None:
        self.text, self.error, self.calls, self.found = text, error, 0, list[str]()

    def __call__(self, staged: Path) -> WrittenFiles:
        self.calls += 1
        self.found = sorted(path.name for path in staged.iterdir())
        (staged / "words.txt").write_text(self.text)
        if self.error is not None:
            raise self.error
        return WrittenFiles(inputs={"a.txt": "2"}, facts=NoticeFacts(words=len(self.text.split())))


@pytest.fixture
def store(tmp_path: Path) -> LocalArtifacts:
    return LocalArtifacts(tmp_path)


def test_an_artifact_is_built_once_and_its_receipt_has_the_recipe(store: LocalArtifacts) -> None:
    write = Writer()
    receipt, reused = ensure_built(RECIPE, store, write)
    assert not reused
    assert (receipt.key, receipt.inputs, receipt.facts) == (RECIPE.key, {"a.txt": "2"}, {"words": 1})
    assert receipt.recipe == {
        "version": 2,
        "settings": {"greeting": "hello"},
        "sources": {"a.txt": "2"},
        "upstream": {"notices/n-0": "3"},
    }
    kept = read_receipt(store.directory(RECIPE.artifact))
    assert kept == receipt
    assert find_damage(store.directory(RECIPE.artifact), receipt) == []
    again, reused = ensure_built(RECIPE, store, write)
    assert (again, reused, write.calls) == (receipt, True, 1)
    assert debris(store.root) == []


def test_a_recipe_that_is_complete_only_after_writing_is_stored_in_the_receipt(store: LocalArtifacts) -> None:
    full = replace(RECIPE, key="5" * 64, settings={"greeting": "hello", "left_out": "1 word"})
    write = Writer()
    receipt, _ = ensure_built(RECIPE, store, lambda staged: replace(write(staged), recipe=full))
    assert (receipt.key, receipt.recipe["settings"]) == (full.key, full.settings)
    assert full.find_change(receipt) is None
    assert ensure_built(full, store, write) == (receipt, True)
    assert write.calls == 1


def test_a_changed_key_or_a_damaged_file_causes_a_rebuild(store: LocalArtifacts) -> None:
    ensure_built(RECIPE, store, Writer())
    receipt, reused = ensure_built(replace(RECIPE, key="4" * 64), store, Writer("good bye"))
    assert (reused, receipt.facts["words"]) == (False, 2)
    path = store.directory(RECIPE.artifact) / "words.txt"
    path.write_text("bad bye!")
    again, reused = ensure_built(replace(RECIPE, key="4" * 64), store, Writer("good bye"))
    assert not reused
    assert again.content == receipt.content
    assert path.read_text() == "good bye"


def test_damage_of_equal_size_is_not_noticed_if_only_sizes_are_compared(store: LocalArtifacts) -> None:
    ensure_built(RECIPE, store, Writer())
    (store.directory(RECIPE.artifact) / "words.txt").write_text("jello")
    assert ensure_built(RECIPE, store, Writer(), "size")[1]
    assert not ensure_built(RECIPE, store, Writer(), "full")[1]


def test_a_failing_writer_keeps_the_previous_artifact(store: LocalArtifacts) -> None:
    before, _ = ensure_built(RECIPE, store, Writer())
    with raises(SourceError, "gone"):
        ensure_built(replace(RECIPE, key="4" * 64), store, Writer("other", SourceError("gone")))
    assert read_receipt(store.directory(RECIPE.artifact)) == before
    assert (store.directory(RECIPE.artifact) / "words.txt").read_text() == "hello"


@pytest.mark.parametrize(("resumes", "found"), [(False, []), (True, ["words.txt"])])
def test_a_resuming_writer_finds_its_partial_files_under_the_same_key(
    store: LocalArtifacts, resumes: bool, found: list[str]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        ensure_built(RECIPE, store, Writer("half", KeyboardInterrupt()), resumes=resumes)  # type: ignore[arg-type]
    write = Writer()
    ensure_built(RECIPE, store, write, resumes=resumes)
    assert write.found == found
    other = Writer()
    ensure_built(replace(RECIPE, key="4" * 64), store, other, resumes=resumes)
    assert other.found == [], "what another key left is not taken for its own"


def test_a_digest_that_the_writer_knows_is_not_computed_again(store: LocalArtifacts) -> None:
    def write(staged: Path) -> WrittenFiles:
        (staged / "words.txt").write_text("hello")
        return WrittenFiles(inputs={}, digests={"words.txt": "5" * 64})

    receipt, _ = ensure_built(RECIPE, store, write)
    assert receipt.file("words.txt").sha256 == "5" * 64 != sha256_file(store.directory(RECIPE.artifact) / "words.txt")


def test_facts_are_empty_by_default(store: LocalArtifacts) -> None:
    receipt, _ = ensure_built(RECIPE, store, lambda staged: WrittenFiles(inputs={}))
    assert receipt.facts == {}
