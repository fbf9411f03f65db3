"""A virtual environment with only the declared requirements of a wheel, or fewer, and no other packages of this one.

Nothing is downloaded: the distributions are linked from the environment that runs the tests. A requirement that the
wheel does not declare is missing, as after `pip install` on a fresh machine.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PathDistribution, distribution
from importlib.util import cache_from_source
from pathlib import Path
from zipfile import Path as ZipPath
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dataprep_assets.definitions import PROJECT_ROOT


def build_wheel(work: Path) -> Path:
    """Build the wheel of this checkout below `work` from a copy, because another test may build at the same time."""
    pytest.importorskip("setuptools", minversion="77")
    source = work / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "dataprep_assets", "resources", "docs", "deploy"):
        subprocess.run(["cp", "-R", "-P", str(PROJECT_ROOT / name), str(source)], check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(work), str(source)], check=True)
    (found,) = work.glob("*.whl")
    return found


def install(wheel: Path, folder: Path) -> Path:
    """Create an environment and install a wheel in it with pip.

    Args:
        wheel: The wheel; pip refuses it if a requirement is missing or has a version that it does not accept.
        folder: The folder of the environment, which must not exist.

    Returns:
        The folder of its programs, with `python`.
    """
    with ZipFile(wheel) as packed:
        (metadata,) = {name.split("/")[0] for name in packed.namelist() if ".dist-info/" in name}
        programs = create_environment(folder, PathDistribution(ZipPath(packed, f"{metadata}/")).requires or [])
    pip_install(programs, [wheel])
    return programs


def create_environment(folder: Path, requirements: Iterable[str]) -> Path:
    """Create an environment in `folder` with only pip and these requirements, and return its folder of programs."""
    venv.create(folder, symlinks=True)
    # Link pip too, because Python would otherwise unpack and compile it each time.
    link_distributions(folder, find_distributions(["pip", *requirements]))
    return folder / "bin"


def pip_install(programs: Path, arguments: Iterable[str | Path]) -> None:
    """Run `pip install` with these arguments in an environment, without an index."""
    pip = [programs / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index"]
    done = subprocess.run([*pip, *arguments], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr


def find_distributions(requirements: Iterable[str]) -> Iterator[Distribution]:
    """Return the installed distributions that these requirements need, directly or indirectly, each once."""
    left = [requirement for text in requirements if _is_required(requirement := Requirement(text), "")]
    seen = set[tuple[str, str]]()
    while left:
        wanted = left.pop()
        found = distribution(wanted.name)
        for extra in ("", *wanted.extras):
            if (part := (canonicalize_name(wanted.name), extra)) in seen:
                continue
            seen.add(part)
            if not extra:
                yield found
            inner = [Requirement(text) for text in found.requires or []]
            left += [each for each in inner if _is_required(each, extra)]


def link_distributions(folder: Path, distributions: Iterable[Distribution]) -> None:
    """Link installed distributions, with their compiled Python files, into an environment."""
    there = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    depth = len(there.relative_to(folder).parts)
    for found in distributions:
        here = Path(str(found.locate_file("")))
        # Replace the prefix of the whole environment, because a distribution's files may also be outside of the folder
        # of its packages.
        prefix = here.parents[depth - 1]
        for file in found.files or []:
            source = here / file
            target = Path(os.path.normpath(there / file))
            # The file is a program, whose first line has the path of its environment's Python.
            if ".." in file.parts:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(source.read_bytes().replace(os.fsencode(prefix), os.fsencode(folder)))
                target.chmod(0o755)
                continue
            _link(source, target)
            if file.suffix == ".py" and Path(compiled := cache_from_source(str(source))).exists():
                _link(Path(compiled), Path(cache_from_source(str(target))))


def _is_required(requirement: Requirement, extra: str) -> bool:
    """Return whether a distribution needs the requirement here: always, or for one of the requested extras."""
    if requirement.marker is None:
        return not extra
    always = requirement.marker.evaluate({"extra": ""})
    return always if not extra else not always and requirement.marker.evaluate({"extra": extra})


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except FileExistsError:
        pass
    except OSError:  # hard links fail, for example on a different file system
        shutil.copy2(source, target)
