"""What `dataprep init` writes: a project of Dagster's `dg` with one small dataset, and the settings of its instance.

`package/` becomes the package of the project; `NAME` in a file, the project's name. The dataset is a copy of the sample
corpus of this project, which needs no network.
"""

import keyword
import re
import shutil
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from dataprep_assets.errors import ConfigError

TEMPLATE = Path(__file__).parent
_SAMPLE = TEMPLATE.parent / "defs" / "samples" / "sample_corpus"
_TO_FILL = ("pyproject.toml", "README.md", "package/definitions.py", "package/__init__.py")


def write_project(target: Path) -> str:
    """Write a project into an empty or new folder, and return the name of its package.

    Raises ConfigError if the folder is not empty, or if no package can have its name.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target}: exists already and is not empty; name another folder")
    name = re.sub(r"\W", "_", target.resolve().name).strip("_").lower()
    if not name.isidentifier():
        raise ConfigError(f"{target}: no package can be called {name!r}. Begin the folder's name with a letter")
    if (owner := _owner_of(name)) is not None:
        raise ConfigError(f"{target}: {name} is {owner}. Choose another name, such as {name}_data")
    target.mkdir(parents=True, exist_ok=True)
    for relative in _TO_FILL:
        text = (TEMPLATE / relative).read_text(encoding="utf-8").replace("NAME", name)
        written = target / relative.replace("package/", f"{name}/")
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(text, encoding="utf-8")
    shutil.copyfile(TEMPLATE / "gitignore", target / ".gitignore")
    (target / ".dagster").mkdir(mode=0o700)  # runs, logs and events of every dataset are in it
    shutil.copyfile(TEMPLATE / "dagster.yaml", target / ".dagster" / "dagster.yaml")
    defs = target / name / "defs"
    defs.mkdir()
    (defs / "__init__.py").touch()
    shutil.copytree(_SAMPLE, defs / "sample_corpus", ignore=shutil.ignore_patterns("__pycache__"))
    return name


def _owner_of(name: str) -> str | None:
    """Return what Python has under this name, so that it would not import a project's package; None if nothing."""
    if keyword.iskeyword(name):
        return "a word of Python's own"
    if name in sys.stdlib_module_names:
        return "a module of Python's standard library"
    # also those of extras that are not installed yet
    required = (re.match(r"[\w.-]+", line) for line in metadata.requires("dataprep-assets") or ())
    if name in {re.sub(r"\W", "_", found[0]).lower() for found in required if found}:
        return "a package that dataprep needs"
    there = find_spec(name)
    if there is None:
        return None
    # a package without an `__init__.py`, such as `google`, looks like a folder of that name here
    places = [there.origin] if there.origin is not None else list(there.submodule_search_locations or ())
    installed = [place for place in places if there.origin is not None or "site-packages" in Path(place).parts]
    return f"a package that is installed ({installed[0]})" if installed else None
