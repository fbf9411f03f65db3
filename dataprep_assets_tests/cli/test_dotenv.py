"""Every entry point loads the project's `.env`: each sees the same storage and the same declarations."""

import os
import sys
from pathlib import Path

import pytest

from dataprep_assets.cli import main
from dataprep_assets.errors import ConfigError
from dataprep_assets.library.project import open_project
from dataprep_assets_tests.cli.nested_project import CORPUS, write_corpus
from dataprep_assets_tests.dg_command import DG
from dataprep_assets_tests.forked import run

TEMPLATED = CORPUS.replace("./texts", '"{{ env.PROBE_TEXTS }}"')
IN_PYTHON = """
import sys
from dataprep_assets.library.project import open_project
project = open_project(*sys.argv[1:])
print(project.storage.root, project.dataset("d00").component.declaration.source.path)
"""


def shell_environment(**variables: str) -> dict[str, str]:
    """Return the environment of a shell in which no variable of the project is set."""
    ours = ("DATAPREP_", "DAGSTER_", "PROBE_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | variables


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project with one dataset, whose source and storage are set in `.env`."""
    root = tmp_path_factory.mktemp("dotenv")
    project = root / "my_texts"
    package = project / "my_texts"
    path = write_corpus(package / "defs" / "d00", "d00", TEMPLATED)
    for folder in (package, package / "defs"):
        (folder / "__init__.py").touch()
    (package / "definitions.py").write_text(
        "from pathlib import Path\nimport dagster as dg\nfrom dataprep_assets.code_location import definitions_of\n"
        "@dg.definitions\ndef defs():\n    return definitions_of(Path(__file__).parents[1])\n"
    )
    (project / "pyproject.toml").write_text(
        '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "my_texts"\n'
    )
    (project / ".env").write_text(f"DATAPREP_ROOT={root}/store\nexport PROBE_TEXTS='{path.parent}/texts'\n")
    return project


@pytest.mark.parametrize("place", ["in it", "below", "elsewhere"])
def test_a_command_has_the_environment_of_the_project(project: Path, place: str) -> None:
    folder = {"in it": project, "below": project / "my_texts" / "defs" / "d00", "elsewhere": project.parent}[place]
    named = ["--project", str(project)] if place == "elsewhere" else []
    done = run(["-m", "dataprep_assets.cli", *named, "check"], env=shell_environment(), cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    opened = run(["-c", IN_PYTHON, *named[1:]], env=shell_environment(), cwd=folder)
    texts = project / "my_texts" / "defs" / "d00" / "texts"
    assert opened.stdout.split() == [str(project.parent / "store"), str(texts)], opened.stderr


@pytest.mark.slow
def test_the_file_overrides_the_shell_at_every_entry_point_as_in_dagster(project: Path) -> None:
    below, store = project / "my_texts" / "defs", project.parent / "store"
    shell = shell_environment(
        DATAPREP_ROOT=str(project.parent / "other"), DAGSTER_DISABLE_TELEMETRY="yes", PYTHONPATH=str(project)
    )
    shell["VIRTUAL_ENV"] = str(Path(sys.executable).parents[1])
    launched = run(["-c", DG, "launch", "--assets", "d00/manifest"], cwd=below, env=shell, timeout=300)
    assert launched.returncode == 0, launched.stdout[-2000:] + launched.stderr[-2000:]
    assert (store / "d00" / "manifest" / "receipt.json").is_file()
    done = run(["-m", "dataprep_assets.cli", "--project", str(project), "run", "d00"], cwd=project.parent, env=shell)
    assert done.returncode == 0, done.stderr
    assert f"{project / '.env'}: overrides DATAPREP_ROOT" in done.stderr
    assert list((store / "d00").rglob("train.bin"))
    assert not (project.parent / "other").exists()


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"# keys\nA=1\nno value here\n", ":3: must be `NAME=value`"),
        (b"A='not closed\n", ":1: must be `NAME=value`"),
        (b"A=1\nB=a\0b\n", ":2: must be `NAME=value`"),
        (b"A=\xff\xfe\n", ": not valid UTF-8 at byte 2"),
        (b"\xef\xbb\xbfA=1\n", ": begins with a byte order mark"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(
    content: bytes, place: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = project / ".env"
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        for command in (["check"], ["run", "d00"], ["status", "d00"], ["list"], ["verify"], ["show", "d00"]):
            assert main(["--project", str(project), *command]) == 2
            assert capsys.readouterr().err.startswith(f"dataprep: {path}{place}")
        with pytest.raises(ConfigError):
            open_project(project)
        assert main(["--project", str(project), "--help"]) == 0
    finally:
        path.write_bytes(before)


def test_a_folder_named_dotenv_is_a_virtual_environment(tmp_path: Path) -> None:
    (tmp_path / ".env").mkdir()
    (tmp_path / "pyproject.toml").write_text('[tool.dg.project]\nroot_module = "x"\n')
    assert open_project(tmp_path).project.load_environment() == []
