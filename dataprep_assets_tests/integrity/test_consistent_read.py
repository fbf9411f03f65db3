"""Several files of an artifact are read from one build, even if another run replaces them in the meantime."""

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


def build_artifact(store: LocalArtifacts, content: str) -> None:
    """Build an artifact of two files with the same content."""

    def write(staged: Path) -> WrittenFiles:
        for name in ("first", "second"):
            (staged / name).write_text(content)
        return WrittenFiles(inputs={})

    ensure_built(Recipe(artifact=PAIR, key=content * 64, version=1), store, write)


def test_files_of_two_builds_are_not_mixed(tmp_path: Path) -> None:
    store, builds = LocalArtifacts(tmp_path), iter("bc")
    build_artifact(store, "a")

    def read(directory: Path, receipt: Receipt) -> tuple[str, str, str]:
        first = (directory / "first").read_text()
        if (content := next(builds, None)) is not None:
            build_artifact(store, content)
        return receipt.key[0], first, (directory / "second").read_text()

    assert read_whole(store, PAIR, read) == ("c", "c", "c")


def test_an_artifact_that_is_replaced_constantly_is_an_error_and_so_is_an_unreadable_one(tmp_path: Path) -> None:
    store, builds = LocalArtifacts(tmp_path), iter("abcdefgh")
    with pytest.raises(MissingArtifactError):
        read_whole(store, PAIR, lambda *_: None)
    build_artifact(store, next(builds))
    with raises(IntegrityError, "repeatedly"):
        read_whole(store, PAIR, lambda *_: build_artifact(store, next(builds)))

    def unreadable(directory: Path, _: Receipt) -> None:
        raise FormatError(f"{directory}: is not right")

    with raises(FormatError, "right"):
        read_whole(store, PAIR, unreadable)
