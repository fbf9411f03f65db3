"""The commands of the Makefile, as `make -n` shows them without installing anything."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("extras", ["", "r2", "r2,gcs,tfds"])
@pytest.mark.parametrize("readers", ["", ",readers"])
def test_pip_gets_valid_arguments_for_any_omitted_extras(extras: str, readers: str, tmp_path: Path) -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("no make")
    command = [make, "-n", f"VENV={tmp_path}", f"EXTRAS={extras}", f"READERS={readers}", "HASHED=", "demo", "test"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    demo, tests = re.findall(r"-e '\.([^']*)'", done.stdout)
    wanted = {extra for extra in extras.split(",") if extra}
    assert Requirement(f"dataprep-assets{demo}").extras == wanted
    assert demo != "[]", "refused by pip 23"
    assert Requirement(f"dataprep-assets{tests}").extras == wanted | {"k8s", "ray", "dev"} | set(readers.split(",")[1:])


@pytest.mark.parametrize("extras", ["", "r2", "r2,gcs,tfds"])
@pytest.mark.parametrize("readers", ["", ",readers"])
def test_if_hashes_are_known_nothing_is_installed_without_one(extras: str, readers: str, tmp_path: Path) -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("no make")
    command = [make, "-n", f"VENV={tmp_path}", f"EXTRAS={extras}", f"READERS={readers}", "HASHED=yes", "demo", "test"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    calls = [line.partition("pip install ")[2] for line in done.stdout.splitlines() if "pip install " in line]
    free = [call for call in calls if "--require-hashes" not in call]
    assert [call.split()[-1] for call in free] == ["."]
    assert all("--no-deps" in call for call in calls)
    named = re.findall(r"-r requirements/([\w-]+)\.txt", done.stdout)
    of_readers = ["readers", "torch", "torch-gpu"] if readers else []
    assert named == ["base", *filter(None, extras.split(",")), "k8s", "ray", "dev", *of_readers]
    assert all((ROOT / "requirements" / f"{name}.txt").is_file() for name in named)


def _runs_of_demo(home: Path, cleaned: Path) -> str:
    """Return the commands of `make demo` in an installed environment."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("no make")
    venv = home.parent / "venv"
    venv.mkdir(exist_ok=True)
    (venv / ".installed").touch()
    command = [make, "-n", f"VENV={venv}", f"DAGSTER_HOME={home}", f"CLEANED={cleaned}", "demo"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_the_demo_materializes_its_upstream_asset_only_if_it_is_out_of_date(tmp_path: Path) -> None:
    (home := tmp_path / "home").mkdir()
    (home / "dagster.yaml").touch()
    (cleaned := tmp_path / "cleaned").mkdir()
    assert "dg launch" in _runs_of_demo(home, cleaned), "it never was"
    (home / "sample_cleaning").touch()
    assert "dg launch" not in _runs_of_demo(home, cleaned)
    later = (home / "sample_cleaning").stat().st_mtime + 10
    os.utime(cleaned, (later, later))
    assert "dg launch" in _runs_of_demo(home, cleaned), "what it wrote was changed"
    cleaned.rmdir()
    assert "dg launch" in _runs_of_demo(home, cleaned), "what it wrote is gone"
