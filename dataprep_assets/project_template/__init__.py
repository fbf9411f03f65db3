"""Template of `dataprep init`: a project of Dagster's `dg` with a small dataset, and the settings of its instance.

`package/` becomes the package of the project. In its files, `NAME` becomes the project's name, and `SAMPLE` the
dataset. The dataset is a copy of a sample of this package, together with the samples that it reads. No sample needs a
network.
"""

import keyword
import re
import shutil
import sys
from collections.abc import Iterable
from enum import Enum
from importlib.util import find_spec
from pathlib import Path

from dataprep_assets.errors import ConfigError

TEMPLATE = Path(__file__).parent
_SAMPLES = TEMPLATE.parent / "defs" / "samples"
_TO_FILL = ("pyproject.toml", "README.md", "package/definitions.py", "package/__init__.py")


class Sample(Enum):
    """A sample that a new project can start with, by the kind of its data."""

    CORPUS = "corpus"
    CHATS = "chats"
    NOTES = "notes"
    BLEND = "blend"
    RL = "rl"
    RELEASE = "release"
    DUPLICATES = "duplicates"
    REPLAY = "replay"
    SCHEDULE = "schedule"
    TASKS = "tasks"

    @property
    def datasets(self) -> tuple[str, ...]:
        """Names of the datasets to build, inputs first."""
        return _DATASETS.get(self, (f"sample_{self.value}",))

    @property
    def missing_extra(self) -> str | None:
        """The extra that the sample needs and that is not installed, if any."""
        module, extra = _EXTRAS.get(self, ("", ""))
        return extra if module and find_spec(module) is None else None


_DATASETS = {
    Sample.CHATS: ("sample_blend_sft",),
    Sample.BLEND: ("sample_blend_pretrain",),
    Sample.RL: ("sample_blend_rl",),
    Sample.REPLAY: ("sample_notes", "sample_replay", "sample_notes_replay_combined"),
    Sample.SCHEDULE: ("sample_corpus", "sample_schedule"),
}
_EXTRAS = {
    Sample.NOTES: ("array_record", "array_record"),
    Sample.REPLAY: ("array_record", "array_record"),
    Sample.DUPLICATES: ("rensa", "duplicates"),
}
"""The module that a sample imports, and the extra that installs it."""


def write_project(target: Path, sample: Sample = Sample.CORPUS) -> str:
    """Write a project with a sample into an empty or new folder, and return the name of its package.

    Raises ConfigError if the folder is not empty, or if no package can have its name.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target}: exists already and is not empty. Name a new folder")
    name = re.sub(r"\W", "_", target.resolve().name).strip("_").lower()
    if not name.isidentifier():
        raise ConfigError(f"{target}: no package can be called {name!r}. Begin the folder's name with a letter")
    if (owner := _owner_of(name)) is not None:
        raise ConfigError(f"{target}: {name} is {owner}. Choose another name, such as {name}_data")
    target.mkdir(parents=True, exist_ok=True)
    for relative in _TO_FILL:
        text = (TEMPLATE / relative).read_text(encoding="utf-8").replace("NAME", name)
        text = text.replace("SAMPLE", sample.datasets[-1])
        written = target / relative.replace("package/", f"{name}/")
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(text, encoding="utf-8")
    shutil.copyfile(TEMPLATE / "gitignore", target / ".gitignore")
    (target / ".dagster").mkdir(mode=0o700)  # it contains the runs, logs and events of every dataset
    shutil.copyfile(TEMPLATE / "dagster.yaml", target / ".dagster" / "dagster.yaml")
    defs = target / name / "defs"
    defs.mkdir()
    (defs / "__init__.py").touch()
    for dataset in _folders(sample.datasets):
        shutil.copytree(_SAMPLES / dataset, defs / dataset, ignore=shutil.ignore_patterns("__pycache__"))
        declared = defs / dataset / "defs.yaml"
        # samples are one folder deeper in this package
        text = declared.read_text(encoding="utf-8").replace("../../../../.dataprep", "../../../.dataprep")
        declared.write_text(text, encoding="utf-8")
    return name


def _owner_of(name: str) -> str | None:
    """Return what Python would import by this name instead of the project's package; None if nothing."""
    if keyword.iskeyword(name):
        return "a word of Python's own"
    if name in sys.stdlib_module_names:
        return "a module of Python's standard library"
    from importlib.metadata import requires

    # includes the packages of extras that are not installed yet
    required = (re.match(r"[\w.-]+", line) for line in requires("dataprep-assets") or ())
    if name in {re.sub(r"\W", "_", found[0]).lower() for found in required if found}:
        return "a package that dataprep needs"
    there = find_spec(name)
    if there is None:
        return None
    # a package without an `__init__.py`, such as `google`, cannot be distinguished here from a folder of that name
    places = [there.origin] if there.origin is not None else list(there.submodule_search_locations or ())
    installed = [place for place in places if there.origin is not None or "site-packages" in Path(place).parts]
    return f"a package that is installed ({installed[0]})" if installed else None


def _folders(datasets: Iterable[str]) -> list[str]:
    """Return the folders of samples, and of the samples whose tokenizer or data they read."""
    found = dict[str, None]()
    for dataset in datasets:
        text = (_SAMPLES / dataset / "defs.yaml").read_text(encoding="utf-8")
        found |= dict.fromkeys([dataset, *re.findall(r"\.\./(sample_\w+)/", text)])
    return list(found)
