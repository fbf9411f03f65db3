"""What `pip install` gives: the wheel alone, without the checkout, makes a project and runs it."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dataprep_assets.definitions import PROJECT_ROOT

pytestmark = pytest.mark.slow
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built from a copy: another test may build at this moment."""
    pytest.importorskip("setuptools", minversion="77")
    work = tmp_path_factory.mktemp("wheel")
    source = work / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "dataprep_assets", "resources"):
        subprocess.run(["cp", "-R", "-P", str(PROJECT_ROOT / name), str(source)], check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(work), str(source)], check=True)
    (found,) = work.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def project(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that `dataprep init` of the installed wheel made."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder / "site")
    done = said(folder, "-m", "dataprep_assets.cli", "init", "my-data")
    assert "dataprep run sample_corpus" in done
    return folder / "my-data"


def said(folder: Path, *arguments: str) -> str:
    """What a Python process prints in a folder, in which the wheel is installed and the checkout is not."""
    site = next(parent / "site" for parent in (folder, *folder.parents) if (parent / "site").is_dir())
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DATAPREP_")}
    environment |= {"PYTHONPATH": str(site), "PATH": f"{BIN}:{os.environ['PATH']}"}
    environment["DAGSTER_HOME"] = str(folder / ".dagster")
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_holds_the_package_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"dataprep_assets"}
    assert not [name for name in names if name.endswith(".pyc") or Path(name).name.startswith("test_")]
    for wanted in ("py.typed", "resources/io_manager.py", "resources/r2.py", "project_template/dagster.yaml"):
        assert f"dataprep_assets/{wanted}" in names


def test_the_installed_command_runs_the_sample_and_verifies_it(project: Path) -> None:
    assert "site" in said(project, "-c", "import dataprep_assets; print(dataprep_assets.__file__)")
    out = said(project, "-m", "dataprep_assets.cli", "run", "sample_corpus")
    assert "checks: 86 of 86 passed" in out
    assert "all match their receipts" in said(project, "-m", "dataprep_assets.cli", "verify")
    assert "all is up to date" in said(project, "-m", "dataprep_assets.cli", "run", "sample_corpus")
    found = said(project.parent, "-m", "dataprep_assets.cli", "--project", str(project), "status", "sample_corpus")
    assert found == "sample_corpus: all is up to date\n"


def test_the_readmes_first_dataset_of_ones_own_is_made_as_it_says(project: Path) -> None:
    readme = (PROJECT_ROOT / "README.md").read_text(encoding="utf-8")
    (declaration,) = re.findall(r"```yaml\n(.*?)```", readme, re.DOTALL)
    folder = project / "my_data" / "defs" / "my_corpus"
    (folder / "texts").mkdir(parents=True)
    words = re.findall(r"\w+", "a fox jumps over the lazy dog while she sells sea shells by the shore and rain falls")
    for split, count in (("train", 300), ("val", 40)):
        texts = [" ".join(words[(number * step) % len(words)] for step in range(1, 60)) for number in range(count)]
        lines = [json.dumps({"text": f"{split.title()} {number}. {text}."}) for number, text in enumerate(texts)]
        (folder / "texts" / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "defs.yaml").write_text(declaration, encoding="utf-8")
    out = said(project, "-m", "dataprep_assets.cli", "run", "my_corpus")
    passed, every = re.findall(r"checks: (\d+) of (\d+) passed", out)[0]
    assert passed == every, out
    bins = project / ".dataprep" / "artifacts" / "my_corpus"
    assert (bins / "nanogpt_bins" / "train.bin").stat().st_size > 0
    assert (bins / "megatron_bins" / "train.idx").exists()
    assert "all match their receipts" in said(project, "-m", "dataprep_assets.cli", "verify", str(bins))


def test_dagsters_own_command_takes_the_project(project: Path) -> None:
    dg = str(BIN / "dg")
    said(project, dg, "scaffold", "defs", "dataprep_assets.components.TokenizedCorpus", "mine")
    assert (project / "my_data" / "defs" / "mine" / "defs.yaml").exists()
    assert "All definitions loaded successfully" in said(project, dg, "check", "defs")
    listed = said(project, dg, "list", "defs", "--json")
    assert '"sample_corpus/manifest"' in listed
    assert '"mine/manifest"' in listed


def test_outside_of_any_project_the_command_says_what_to_do(project: Path) -> None:
    with pytest.raises(AssertionError, match="in no project; `dataprep init DIR` makes one, --project DIR or"):
        said(project.parent, "-m", "dataprep_assets.cli", "status", "sample_corpus")


def test_a_folder_that_is_not_empty_is_left_alone(project: Path) -> None:
    with pytest.raises(AssertionError, match="my-data: is there and not empty; name a folder that is not"):
        said(project.parent, "-m", "dataprep_assets.cli", "init", "my-data")
