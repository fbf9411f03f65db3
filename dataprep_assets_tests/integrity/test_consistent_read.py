"""Several files of an artifact that another run replaces while they are read are of one build all the same."""

from pathlib import Path

import pytest

from dataprep_assets.engine.artifact.build import WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.errors import FormatError, IntegrityError, MissingArtifactError
from dataprep_assets.integrity.artifacts import Artifact, LocalArtifacts
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.source.manifest import read_whole
from dataprep_assets_tests.messages import raises

PAIR = Artifact(dataset="d", name="pair")


def make(store: LocalArtifacts, content: str) -> None:
    """An artifact of two files with the same content."""

    def write(staged: Path) -> WrittenFiles:
        for name in ("first", "second"):
            (staged / name).write_text(content)
        return WrittenFiles(inputs={})

    ensure_built(Recipe(artifact=PAIR, key=content * 64, version=1), store, write)


def test_files_of_two_builds_are_not_mixed(tmp_path: Path) -> None:
    store, builds = LocalArtifacts(tmp_path), iter("bc")
    make(store, "a")

    def read(directory: Path, receipt: Receipt) -> tuple[str, str, str]:
        first = (directory / "first").read_text()
        if (content := next(builds, None)) is not None:
            make(store, content)
        return receipt.key[0], first, (directory / "second").read_text()

    assert read_whole(store, PAIR, read) == ("c", "c", "c")


def test_one_that_is_replaced_all_the_time_is_an_error_and_so_is_what_cannot_be_read(tmp_path: Path) -> None:
    store, builds = LocalArtifacts(tmp_path), iter("abcdefgh")
    with pytest.raises(MissingArtifactError):
        read_whole(store, PAIR, lambda *_: None)
    make(store, next(builds))
    with raises(IntegrityError, "repeatedly"):
        read_whole(store, PAIR, lambda *_: make(store, next(builds)))

    def unreadable(directory: Path, _: Receipt) -> None:
        raise FormatError(f"{directory}: is not right")

    with raises(FormatError, "right"):
        read_whole(store, PAIR, unreadable)
