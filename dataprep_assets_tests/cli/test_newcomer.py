"""Messages for new users: each states once what is wrong and what to do."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dataprep_assets.cli import main
from dataprep_assets.project_template import write_project
from dataprep_assets_tests.cli.nested_project import CORPUS, write_corpus

TAG = '  tag: [{function: "my_data.taggers:variety", columns: {variety: number}}]\n  drop: {dull: variety < 0.2}\n'


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    # Use one project for all tests, because a process imports the project's package only once.
    folder = tmp_path_factory.mktemp("newcomer") / "newcomers-data"
    write_project(folder)
    write_corpus(folder / "newcomers_data" / "defs" / "pages", "pages", CORPUS + TAG)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DAGSTER_HOME", "DATAPREP_ROOT", "DATAPREP_PROJECT"):
            patch.delenv(name, raising=False)
        patch.chdir(folder)
        yield folder


def _run(project: Path, *words: str) -> int:
    return main(["--project", str(project), *words])


def test_artifacts_of_a_removed_dataset_are_named_with_their_folder(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = project / ".dataprep" / "artifacts" / "gone"
    folder.mkdir(parents=True)
    assert _run(project, "prune", "gone") == 2
    assert str(folder) in capfd.readouterr().err
    assert folder.is_dir()
    assert _run(project, "prune", "never") == 2
    assert "available: pages, sample_corpus" in capfd.readouterr().err


def test_a_tagger_that_cannot_be_imported_is_reported_once(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert _run(project, "check", "pages") == 2
    output = capfd.readouterr()
    assert (output.out + output.err).count("my_data.taggers:variety") == 1
    assert "1 declaration: 1 error" in output.out


def test_a_dataset_without_a_document_table_names_the_command_for_its_losses(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert _run(project, "documents", "sample_corpus", "--reason", "bad_json") == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "`dataprep show sample_corpus`" in line
    assert "`document.keep_fields: {}`" in line
