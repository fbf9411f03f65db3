"""Names that start with `_` or `.` are not data, by the convention of Spark and others, unless a glob names them."""

from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.blend.plan.discovery import discover_dataset
from dataprep_assets.pipelines.blend.remarks import find_blend_remarks
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.remarks import find_corpus_remarks
from dataprep_assets.pipelines.corpus.source.manifest import plan_manifest
from dataprep_assets.planning.manifest import build_include_predicate
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.blend.pipeline import declare_pretraining, make_texts, write_rows
from dataprep_assets_tests.samples import SAMPLE

DATA = ("part-0.jsonl", "lang=de/_year=2020/part-1.jsonl")
HIDDEN = (
    "_temporary/0/part-0.jsonl",
    "_delta_log/00000.jsonl",
    ".part-0.jsonl",
    "__MACOSX/._part-0.jsonl",
    "lang=de/_attempt.jsonl",
    ".ipynb_checkpoints/part-0.jsonl",
    "lang=de/.cache/a/part-2.jsonl",
)
OTHERS = ("_SUCCESS", ".part-0.jsonl.crc", ".git/config")
LINKS = (".#part-0.jsonl", ".venv/out.jsonl", ".trash")
"""Hidden names of dangling, outward and circular links."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for at, name in enumerate((*DATA, *HIDDEN, *OTHERS)):
        write_rows(tmp_path / "s" / name, make_texts(f"d{at}", 9))
    write_rows(tmp_path / "out.jsonl", make_texts("out", 9))
    (tmp_path / "s" / ".venv").mkdir()
    for name, target in zip(LINKS, ("nobody@nowhere", tmp_path / "out.jsonl", tmp_path), strict=True):
        (tmp_path / "s" / name).symlink_to(target)
    return tmp_path / "s"


def corpus(folder: Path, **changes: Any) -> CorpusDeclaration:
    declared: dict[str, Any] = {
        "dataset": "pages",
        "source": {"kind": "local", "path": folder},
        "include": ["**/*.jsonl"],
        "splits": {"train": ["**"]},
        "tokenizer": {"path": SAMPLE / "tokenizer", "engine": "tokenizers"},
        "document": {"separator": "<|endoftext|>"},
    }
    return CorpusDeclaration.model_validate(declared | changes)


def files_of(declared: CorpusDeclaration, root: Path) -> tuple[set[str], int]:
    planned = plan_manifest(declared, LocalArtifacts(root))
    return {entry.relpath for entry in planned.entries}, planned.left_out


def test_a_corpus_ignores_hidden_files_and_counts_them(folder: Path, tmp_path: Path) -> None:
    assert files_of(corpus(folder), tmp_path / "a") == ({*DATA}, len(HIDDEN) + 2)
    (links, hint) = [one for one in find_corpus_remarks(corpus(folder)) if "excluded" in one.sentence]
    assert_names(links.sentence, 2, LINKS[0], LINKS[1])
    assert (hint.keys, hint.hint) == (("include",), True)
    assert f"{len(HIDDEN)} files are excluded" in hint.sentence
    # The other files are not data. `_SUCCESS` has no known format, which is not an error.
    assert files_of(corpus(folder, include=["**/*"]), tmp_path / "b")[0] == {*DATA}


@pytest.mark.parametrize(
    "globs",
    [
        {"include": ["**/*.jsonl", "_temporary/**"]},
        {"splits": {"train": ["*.jsonl", "lang=*/**"], "tried": ["_temporary/**"]}},
    ],
)
def test_a_glob_that_names_hidden_files_selects_them(folder: Path, tmp_path: Path, globs: dict[str, Any]) -> None:
    found, left = files_of(corpus(folder, **globs), tmp_path / "a")
    assert found == {*DATA, HIDDEN[0]}
    assert left == len(HIDDEN) + 2 - 1


def test_a_glob_that_names_a_folder_with_a_dot_selects_its_files(folder: Path, tmp_path: Path) -> None:
    found, left = files_of(corpus(folder, include=["*.jsonl", "lang=*/.cache/**/*.jsonl"]), tmp_path / "a")
    assert found == {"part-0.jsonl", HIDDEN[-1]}
    assert left == 2  # `.part-0.jsonl` and the dangling link are left out


def test_an_include_that_selects_only_hidden_names_is_reported(folder: Path, tmp_path: Path) -> None:
    with raises(ConfigError, "include", "_delta_log/00000.jsonl"):
        files_of(corpus(folder, include=["*/00000.jsonl"]), tmp_path)


def test_a_blend_also_ignores_hidden_files(folder: Path) -> None:
    def found(path: str) -> set[str]:
        blend = declare_pretraining(folder, blend={"datasets": [{"name": "d", "path": path}]})
        (unit,) = blend.load_data_blend().list_units()
        return {entry.relpath for entry in discover_dataset(unit, blend.sources).entries}

    assert found(str(folder)) == {*DATA}
    assert found(f"{folder}/**/*.jsonl") == {*DATA}
    assert found(f"{folder}/_temporary") == {"0/part-0.jsonl"}
    assert found(f"{folder}/.part-0.jsonl") == {".part-0.jsonl"}
    assert found(f"{folder}/.ipynb_checkpoints") == {"part-0.jsonl"}
    assert found(f"{folder}/*/_attempt.jsonl") == {"lang=de/_attempt.jsonl"}
    blend = declare_pretraining(folder, blend={"datasets": [{"name": "d", "path": str(folder)}]})
    (hint,) = [one for one in find_blend_remarks(blend) if "begin with" in one.sentence]
    assert f"{len(HIDDEN)} files excluded" in hint.sentence


def test_a_hidden_folder_in_the_path_of_a_glob_selects_no_hidden_files() -> None:
    taken = build_include_predicate(["_data/*.jsonl", "**/*.jsonl"])
    assert taken("_data/a.jsonl")
    assert not taken("_other/a.jsonl")


def test_copies_are_noted_with_both_names(folder: Path) -> None:
    (folder / "copy of part-0.jsonl").write_bytes((folder / DATA[0]).read_bytes())
    (hint,) = [one for one in find_corpus_remarks(corpus(folder)) if "identical to a different file" in one.sentence]
    assert hint.hint
    assert DATA[0] in hint.sentence
    assert "copy of" in hint.sentence
