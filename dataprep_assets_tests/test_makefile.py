"""The Makefile's own commands, as `make -n` shows them: nothing is installed."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("extras", ["", "r2", "r2,gcs,tfds"])
@pytest.mark.parametrize("readers", ["", ",readers"])
def test_whatever_extras_are_left_out_pip_is_asked_for_what_it_accepts(
    extras: str, readers: str, tmp_path: Path
) -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("no make")
    command = [make, "-n", f"VENV={tmp_path}", f"EXTRAS={extras}", f"READERS={readers}", "demo", "test"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    demo, tests = re.findall(r"-e '\.([^']*)'", done.stdout)
    wanted = {extra for extra in extras.split(",") if extra}
    assert Requirement(f"dataprep-assets{demo}").extras == wanted
    assert demo != "[]", "refused by pip 23"
    assert Requirement(f"dataprep-assets{tests}").extras == wanted | {"k8s", "ray", "dev"} | set(readers.split(",")[1:])
