"""A virtual environment that holds what a wheel declares, or less, and nothing else that this one happens to have.

Nothing is fetched: the distributions are linked from the environment that runs the tests. What the wheel forgot to
declare is absent, which is what `pip install` of it gives on a fresh machine.
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
    """The wheel of this checkout, built below `work` from a copy: another test may build at this moment."""
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
    """Make an environment and let pip install a wheel in it.

    Args:
        wheel: The wheel; pip refuses it where what it requires is not there in a version that it accepts.
        folder: Where the environment is made; must not exist.

    Returns:
        Its folder of programs, with `python`.
    """
    with ZipFile(wheel) as packed:
        (metadata,) = {name.split("/")[0] for name in packed.namelist() if ".dist-info/" in name}
        programs = environment(folder, PathDistribution(ZipPath(packed, f"{metadata}/")).requires or [])
    pip_install(programs, [wheel])
    return programs


def environment(folder: Path, requirements: Iterable[str]) -> Path:
    """Make an environment in `folder` with pip and these requirements alone; its folder of programs."""
    venv.create(folder, symlinks=True)
    # linked, too: Python's own way is to unpack and compile pip anew each time
    link_distributions(folder, required(["pip", *requirements]))
    return folder / "bin"


def pip_install(programs: Path, arguments: Iterable[str | Path]) -> None:
    """`pip install` with these arguments, in an environment and without an index."""
    pip = [programs / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index"]
    done = subprocess.run([*pip, *arguments], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr


def required(requirements: Iterable[str]) -> Iterator[Distribution]:
    """The installed distributions that these requirements bring, each once, with what they require in turn."""
    left = [requirement for text in requirements if _asked_for(requirement := Requirement(text), "")]
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
            left += [each for each in inner if _asked_for(each, extra)]


def link_distributions(folder: Path, distributions: Iterable[Distribution]) -> None:
    """Link installed distributions, with what Python has compiled of them, into an environment."""
    there = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    depth = len(there.relative_to(folder).parts)
    for found in distributions:
        here = Path(str(found.locate_file("")))
        prefix = here.parents[depth - 1]  # of the environment that it is in, which may be beside this one
        for file in found.files or []:
            source = here / file
            target = Path(os.path.normpath(there / file))
            if ".." in file.parts:  # a program: its first line names the Python
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(source.read_bytes().replace(os.fsencode(prefix), os.fsencode(folder)))
                target.chmod(0o755)
                continue
            _link(source, target)
            if file.suffix == ".py" and Path(compiled := cache_from_source(str(source))).exists():
                _link(Path(compiled), Path(cache_from_source(str(target))))


def _asked_for(requirement: Requirement, extra: str) -> bool:
    """Whether a distribution requires it here: always, or for an extra of its own."""
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
    except OSError:  # another file system
        shutil.copy2(source, target)
