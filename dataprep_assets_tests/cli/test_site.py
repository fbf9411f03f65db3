"""`dataprep site` writes the pages of a project and prints where they are."""

from pathlib import Path

from dataprep_assets.project_template import write_project
from dataprep_assets_tests.cli.commands import dataprep


def test_the_pages_of_a_new_project_are_written(tmp_path: Path) -> None:
    write_project(project := tmp_path / "shift")
    done = dataprep(tmp_path, "site", project=project)
    index = project / ".dataprep" / "site" / "index.html"
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].endswith(f"written, 0 removed: {index}")
    assert "never built" in index.read_text()
    again = dataprep(tmp_path, "site", "sample_corpus", project=project)
    page = project / ".dataprep" / "site" / "datasets" / "sample_corpus" / "index.html"
    assert again.stdout == f"0 files written, 0 removed: {page}\n"
    assert page.is_file()


def test_a_declaration_that_cannot_be_loaded_is_reported_and_shown(tmp_path: Path) -> None:
    write_project(project := tmp_path / "shift")
    folder = project / "shift" / "defs" / "bad"
    folder.mkdir()
    (folder / "defs.yaml").write_text(
        "type: dataprep_assets.components.TokenizedCorpus\nattributes: {dataset: bad, spilts: 1}\n"
    )
    done = dataprep(tmp_path, "site", project=project)
    assert done.returncode == 1
    assert "spilts" in done.stderr
    assert "dataprep check bad" in (project / ".dataprep" / "site" / "index.html").read_text()
    unknown = dataprep(tmp_path, "site", "sample_corpse", project=project)
    assert unknown.returncode == 2
    assert "sample_corpus" in unknown.stderr
