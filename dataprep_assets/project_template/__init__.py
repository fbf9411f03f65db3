"""Template of `dataprep init`: a project of Dagster's `dg` with a small dataset, and the settings of its instance.

`package/` becomes the package of the project. In its files, `NAME` becomes the project's name, `SAMPLE` the dataset,
`SAMPLES` the dataset with its inputs, `SCAFFOLD` the command that declares another dataset of its kind, and `RANDOM_ID`
the project's id. The dataset is a copy of a sample of this package, together with the samples that it reads. No sample
needs a network.
"""

import keyword
import re
import secrets
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
    PAIRS = "pairs"
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
    def scaffold(self) -> str:
        """The command that declares a dataset of the sample's component."""
        # Import this module only when it is needed, because `dataprep --help` also loads the present module.
        from dataprep_assets.declarations import read_component

        return format_scaffold_command(str(read_component(_SAMPLES / self.datasets[-1] / "defs.yaml")))

    @property
    def missing_extra(self) -> str | None:
        """The extra that the sample needs and that is not installed, if any."""
        module, extra = _EXTRAS.get(self, ("", ""))
        return extra if module and find_spec(module) is None else None


_DATASETS = {
    Sample.CHATS: ("sample_blend_sft",),
    Sample.BLEND: ("sample_blend_pretrain",),
    Sample.PAIRS: ("sample_blend_pairs",),
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
_NEW_NAMES = {
    "TokenizedCorpus": "my_corpus",
    "PackedCohorts": "my_notes",
    "CombinedCohorts": "my_mixture",
    "TrainingBlend": "my_blend",
    "ShardRelease": "my_release",
    "TrainingSchedule": "my_schedule",
    "TaskMigration": "my_tasks",
}
"""Component → the name of a new dataset in the commands that are shown."""


def format_scaffold_command(component: str = "TokenizedCorpus") -> str:
    """Return the command that declares a new dataset of a component, with every key explained."""
    name = _NEW_NAMES.get(component)
    return f"dg scaffold defs dataprep_assets.components.{component} {name}" if name else format_scaffold_command()


def write_project(target: Path, sample: Sample = Sample.CORPUS) -> str:
    """Write a project with a sample into an empty or new folder, and return the name of its package.

    Raises ConfigError if the folder is not empty, or if no package can have its name.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target}: already exists and is not empty. Choose a new folder")
    name = re.sub(r"\W", "_", target.resolve().name).strip("_").lower()
    if not name.isidentifier():
        raise ConfigError(
            f"{target}: {name!r} is not a valid name for a Python package. Begin the folder's name with a letter"
        )
    if (owner := _find_name_owner(name)) is not None:
        raise ConfigError(f"{target}: {name} is {owner}. Choose a different name, such as {name}_data")
    target.mkdir(parents=True, exist_ok=True)
    for relative in _TO_FILL:
        text = (TEMPLATE / relative).read_text(encoding="utf-8").replace("NAME", name)
        text = text.replace("SAMPLES", " ".join(sample.datasets)).replace("SAMPLE", sample.datasets[-1])
        text = text.replace("SCAFFOLD", sample.scaffold).replace("RANDOM_ID", secrets.token_hex(4))
        output_path = target / relative.replace("package/", f"{name}/")
        output_path.parent.mkdir(parents=True, exist_ok=True)
        output_path.write_text(text, encoding="utf-8")
    shutil.copyfile(TEMPLATE / "gitignore", target / ".gitignore")
    (target / ".dagster").mkdir(mode=0o700)  # private, because it will hold runs, logs and events
    shutil.copyfile(TEMPLATE / "dagster.yaml", target / ".dagster" / "dagster.yaml")
    defs = target / name / "defs"
    defs.mkdir()
    (defs / "__init__.py").touch()
    for dataset in _list_folders(sample.datasets):
        shutil.copytree(_SAMPLES / dataset, defs / dataset, ignore=shutil.ignore_patterns("__pycache__"))
        declaration_path = defs / dataset / "defs.yaml"
        # Remove one `../`, because the samples are one folder deeper in this package than in a project.
        text = declaration_path.read_text(encoding="utf-8").replace("../../../../.dataprep", "../../../.dataprep")
        declaration_path.write_text(text, encoding="utf-8")
    return name


def _find_name_owner(name: str) -> str | None:
    """Return the existing meaning of a name, which would hide the project's package; None if the name is free."""
    if keyword.iskeyword(name):
        return "a Python keyword"
    if name in sys.stdlib_module_names:
        return "a module of Python's standard library"
    from importlib.metadata import requires

    # Read the declared requirements, because packages of extras may not be installed yet.
    required = (re.match(r"[\w.-]+", line) for line in requires("dataprep-assets") or ())
    if name in {re.sub(r"\W", "_", found[0]).lower() for found in required if found}:
        return "a package that dataprep needs"
    module_spec = find_spec(name)
    if module_spec is None:
        return None
    # Compare the paths, because an installed namespace package, such as `google`, has no origin, like a plain folder of
    # that name.
    origins = (
        [module_spec.origin] if module_spec.origin is not None else list(module_spec.submodule_search_locations or ())
    )
    installed = [place for place in origins if module_spec.origin is not None or "site-packages" in Path(place).parts]
    return f"an installed package ({installed[0]})" if installed else None


def _list_folders(datasets: Iterable[str]) -> list[str]:
    """Return the folders of samples, and of the samples whose tokenizer or data they read."""
    folders = dict[str, None]()
    for dataset in datasets:
        text = (_SAMPLES / dataset / "defs.yaml").read_text(encoding="utf-8")
        folders |= dict.fromkeys([dataset, *re.findall(r"\.\./(sample_\w+)/", text)])
    return list(folders)
