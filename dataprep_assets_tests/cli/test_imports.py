"""Read-only commands import neither Dagster nor a data library whose files they do not open."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets.project_template import write_project
from dataprep_assets_tests.cli.commands import environment

COMMAND = (sys.executable, "-X", "importtime", "-m", "dataprep_assets.cli")
DAGSTER = {"dagster", "dagster_shared", "sqlalchemy", "alembic"}
READERS = {"pyarrow", "pandas", "transformers", "torch", "huggingface_hub", "httpx", "fastokens"}
LOOKS = DAGSTER | READERS | {"tokenizers", "jinja2", "rich", "zstandard"}
NAMES = LOOKS | {"numpy", "pydantic", "orjson", "xxhash"}
"""Packages that a command which only finds names must not import."""
READING = {
    *(
        f"dataprep_assets.sources.readers.{name}"
        for name in ("first_rows", "input_format", "records", "row_files", "rows")
    ),
    "dataprep_assets.stream.part_encoder",
}
"""Modules that a command which reads no documents must not import."""


def list_imported_modules(folder: Path, *arguments: str, project: Path = PROJECT_ROOT, **variables: str) -> set[str]:
    """Return the modules that a command imports, including in the process that does its work."""
    more = {"DATAPREP_PROJECT": str(project), "PYTHONPATH": str(project), **variables}
    done = subprocess.run([*COMMAND, *arguments], env=environment(folder) | more, capture_output=True, text=True)
    names = re.findall(r"^import time: .*\| +([\w.]+)$", done.stderr, re.MULTILINE)
    assert "dataprep_assets.cli" in names, done.stderr
    return set(names)


def list_imported_packages(folder: Path, *arguments: str, project: Path = PROJECT_ROOT, **variables: str) -> set[str]:
    """Return the packages that a command imports, including in the process that does its work."""
    modules = list_imported_modules(folder, *arguments, project=project, **variables)
    return {name.partition(".")[0] for name in modules}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project with one dataset."""
    folder = tmp_path_factory.mktemp("imports") / "small_project"
    write_project(folder)
    return folder


def test_help_and_completion_import_only_the_command_line_parser(tmp_path: Path) -> None:
    assert not NAMES & list_imported_packages(tmp_path, "--help")
    # Allow pydantic, because Typer imports it if it is installed.
    completion = {"_DATAPREP_COMPLETE": "complete_bash", "COMP_WORDS": "dataprep status ", "COMP_CWORD": "2"}
    assert not NAMES - {"pydantic"} & list_imported_packages(tmp_path, **completion)


def test_listing_every_kind_of_dataset_imports_no_dagster(tmp_path: Path) -> None:
    assert not LOOKS & list_imported_packages(tmp_path, "list")


@pytest.mark.parametrize("command", ["list", "status", "show"])
def test_a_command_that_reads_receipts_imports_no_data_library(root: Path, tmp_path: Path, command: str) -> None:
    modules = list_imported_modules(tmp_path, command, "sample_corpus", project=root)
    assert not LOOKS & {name.partition(".")[0] for name in modules}
    assert "dataprep_assets.stream.token_shard" in modules
    assert sorted(READING & modules) == []


def test_check_opens_only_the_tokenizer(root: Path, tmp_path: Path) -> None:
    found = list_imported_packages(tmp_path, "check", project=root, XDG_CACHE_HOME=str(tmp_path / "no-results-yet"))
    assert not LOOKS - {"tokenizers", "zstandard"} & found
    assert "tokenizers" in found


def test_a_template_is_left_to_dagster_to_render(root: Path, tmp_path: Path) -> None:
    declared = root / "small_project" / "defs" / "sample_corpus" / "defs.yaml"
    text = declared.read_text()
    try:
        declared.write_text(re.sub(r"(?m)^  description:.*$", '  description: "{{ env.TOLD }}"', text))
        assert declared.read_text() != text
        assert "dagster" in list_imported_packages(
            tmp_path, "show", "sample_corpus", project=root, TOLD="from the environment"
        )
    finally:
        declared.write_text(text)
