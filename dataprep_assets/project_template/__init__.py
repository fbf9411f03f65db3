"""What `dataprep init` writes: a project of Dagster's `dg` with one small dataset, and the settings of its instance.

`package/` becomes the package of the project; `NAME` in a file, the project's name. The dataset is a copy of the sample
corpus of this project, which needs no network.
"""

import re
import shutil
from importlib.util import find_spec
from pathlib import Path

from dataprep_assets.errors import ConfigError

TEMPLATE = Path(__file__).parent
_SAMPLE = TEMPLATE.parent / "defs" / "samples" / "sample_corpus"
_TO_FILL = ("pyproject.toml", "README.md", "package/definitions.py", "package/__init__.py")


def write_project(target: Path) -> str:
    """Write a project into an empty or new folder, and return the name of its package.

    Raises ConfigError if the folder is not empty, or if its name cannot be turned into a package name, or into that of
    a package that is installed: Python would import that one.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target}: exists already and is not empty; name another folder")
    name = re.sub(r"\W", "_", target.resolve().name).strip("_").lower()
    if not name.isidentifier():
        raise ConfigError(f"{target}: no package can be called {name!r}; begin the folder's name with a letter")
    there = find_spec(name)
    if there is not None and there.origin is not None:  # without an origin it is only a folder of that name
        raise ConfigError(
            f"{target}: a package {name} is installed ({there.origin}); choose another name of the folder"
        )
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
