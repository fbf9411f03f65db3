"""A first run finds mistakes in files, taggers and the environment before a build, and reports each in one sentence."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dataprep_assets.errors import ConfigError, DataprepError
from dataprep_assets.library.instance import convert_database_errors
from dataprep_assets.library.mistakes import require_sound_environment
from dataprep_assets.project import find_project
from dataprep_assets.stores.files import explain_invalid_name
from dataprep_assets_tests.cli.commands import dataprep
from dataprep_assets_tests.cli.nested_project import nested_project, write_corpus
from dataprep_assets_tests.messages import assert_names, raises

TAGGED = """  tag:
    - {function: "my_texts.taggers:quality", columns: {quality: number}}
  drop: {dull: quality < 0}
"""


def rename_field(path: Path) -> None:
    """Use another field name in one file."""
    (path.with_name("texts") / "train_more.jsonl").write_text('{"txt": "hello"}\n')


def change_format(path: Path) -> None:
    """Write content that the file's name does not match."""
    (path.with_name("texts") / "train_more.jsonl").write_bytes(b"PAR1\x00\x00PAR1")


def write_invalid_row(path: Path) -> None:
    """Write a row that is not UTF-8."""
    with open(path.with_name("texts") / "train.jsonl", "ab") as file:
        file.write(b'{"text": "caf\xe9"}\n')


def import_missing_module(path: Path) -> None:
    """Write a tagger that cannot be imported."""
    write_tagger(path, "import surely_not_installed\ndef quality(documents): ...\n")


def exit_process(path: Path) -> None:
    """Write a tagger that ends its process."""
    write_tagger(path, "import sys\ndef quality(documents):\n    sys.exit(0)\n")


def write_tagger(path: Path, code: str) -> None:
    path.write_text(path.read_text() + TAGGED)
    (path.parents[3] / "taggers.py").write_text(code)


FOUND: dict[Callable[[Path], None], str] = {
    rename_field: ":4: source: train_more.jsonl: none of its rows can be read",
    change_format: ":4: source: train_more.jsonl: the file is a Parquet file",
    write_invalid_row: ":4: source: train.jsonl: row 21, byte ",
    import_missing_module: ":11: tag: my_texts.taggers:quality: cannot be imported: ModuleNotFoundError",
    exit_process: ":11: train.jsonl: row 1: tagger 'quality' raised SystemExit",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nested_project(tmp_path_factory.mktemp("first"))


@pytest.mark.slow
@pytest.mark.parametrize("mistake", FOUND)
def test_a_first_run_begins_with_the_findings_of_check(project: Path, mistake: Callable[[Path], None]) -> None:
    name = f"first_{mistake.__name__}"
    path = write_corpus(project / "my_texts" / "defs" / "team" / name, name)
    mistake(path)
    done = dataprep(project, "run", name, project=project)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert f"{path}{FOUND[mistake]}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (project / "artifacts" / name).exists()


@pytest.mark.slow
def test_a_tagger_that_kills_its_worker_is_named_once(project: Path) -> None:
    path = write_corpus(project / "my_texts" / "defs" / "team" / "dies", "dies")
    rows = "".join('{"text": "a text"}\n' for _ in range(40))
    (path.with_name("texts") / "train.jsonl").write_text(rows)
    write_tagger(path, "import os\ndef quality(documents):\n    os._exit(3) if len(documents) > 20 else None\n" + GIVES)
    done = dataprep(project, "run", "dies", project=project, DATAPREP_WORKERS="2")
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("The worker ran my_texts.taggers:quality. Check this code first") == 1, done.stderr


GIVES = "    return {'quality': [1.0] * len(documents)}\n"


def test_a_file_of_the_project_does_not_shadow_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shadowing" / "defs").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[tool.dg.project]\nroot_module = "shadowing"\n')
    (tmp_path / "tokenizers.py").touch()
    monkeypatch.setattr(sys, "path", [*sys.path])
    find_project(str(tmp_path)).make_importable()
    assert sys.path[-1] == str(tmp_path)


def test_a_file_in_place_of_the_project_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with raises(ConfigError, tmp_path / "file"):
        find_project(str(tmp_path / "file"))


def test_a_removed_working_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATAPREP_PROJECT", raising=False)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with raises(ConfigError, "working folder"):
        find_project()


def test_a_locale_that_decodes_file_names_differently_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.getfilesystemencoding", lambda: "iso8859-1")
    with raises(ConfigError, "iso8859-1", "UTF-8"):
        require_sound_environment()


def test_a_database_without_write_permission_is_named(tmp_path: Path) -> None:
    import sqlalchemy

    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/absent/runs.db")

    with raises(DataprepError, "DAGSTER_HOME", tmp_path), convert_database_errors(tmp_path), engine.connect():
        pass


@pytest.mark.parametrize(
    ("name", "why"), [(os.fsdecode(b"c\xff.jsonl"), "it is not valid UTF-8"), ("a\nb", "it has a control character")]
)
def test_an_invalid_name_is_refused_with_its_reason(name: str, why: str) -> None:
    assert explain_invalid_name(name).startswith(why)


def test_a_link_to_itself_is_not_a_folder(project: Path) -> None:
    path = write_corpus(project / "my_texts" / "defs" / "team" / "loop", "loop")
    subprocess.run(["rm", "-r", str(path.with_name("texts"))], check=True)
    path.with_name("texts").symlink_to("texts")
    done = dataprep(project, "check", "loop", project=project)
    assert done.returncode == 2
    assert_names(done.stdout, f"{path}:4", path.with_name("texts"))
