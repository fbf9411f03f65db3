"""What is wrong with declarations and what they name, before anything is built: each mistake with its file and line."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep_assets.engine.artifact.dataset import Dataset
from dataprep_assets.engine.artifact.spec import DatasetInput
from dataprep_assets.engine.privacy import privacy_of
from dataprep_assets.engine.yaml.declaration import MadeByEngine
from dataprep_assets.engine.yaml.declared_keys import nearest
from dataprep_assets.engine.yaml.mistakes import read_documents
from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.errors import ConfigError, DataprepError
from dataprep_assets.execution.pool import chosen_engine, require_engine, worker_count
from dataprep_assets.stores.connect import LocalPlace, missing_library

if TYPE_CHECKING:
    from dataprep_assets.library.project import OpenProject


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """Something to correct in a declaration, or to know of.

    Attributes:
        file: The `defs.yaml`, or a file that it names.
        line: The line there, from 1; None if it is about the file as a whole.
        sentence: What is wrong, and what to do.
        hint: Whether it only may be wrong: nothing is held up by it.
        of_source: Whether only the source can tell: a run of a dataset that is up to date does not ask.
    """

    file: Path
    line: int | None
    sentence: str
    hint: bool = False
    of_source: bool = False

    def __str__(self) -> str:
        where = f":{self.line}" if self.line else ""
        # small counts are not in it any more: who prints it need not look for them
        return f"{self.file}{where}: {self.sentence}"

    def to_json(self) -> dict[str, Any]:
        """The JSON object with the documented keys of `--json`."""
        return {"file": str(self.file), "line": self.line, "sentence": self.sentence, "hint": self.hint}


def require_sound_environment() -> None:
    """Raise ConfigError if an environment variable that controls execution has an invalid value, or the locale does."""
    if (encoding := sys.getfilesystemencoding()) != "utf-8":
        # names of files are in manifests, and must not depend on where they are read
        raise ConfigError(
            f"LC_ALL, LC_CTYPE or LANG: file names are decoded as {encoding}, not UTF-8. Set LC_ALL=C.UTF-8, and "
            "unset PYTHONUTF8 and PYTHONCOERCECLOCALE"
        )
    worker_count(None)
    chosen_engine(os.environ)


def mistakes_in(project: "OpenProject", path: Path) -> list[Mistake]:
    """The mistakes in a `defs.yaml`; none of one that declares no dataset."""
    try:
        component = project.declarations.load(path)
        return mistakes_of(project, component, path, tried=True) if isinstance(component, Dataset) else []
    except DataprepError as error:
        return _of_error(str(error), path)


def _of_error(text: str, path: Path) -> list[Mistake]:
    """The lines of an error of loading a file, each of which begins with a place."""
    mistakes: list[Mistake] = []
    for line in text.splitlines():
        # an absolute path may have blanks in it
        if (place := re.match(r"(/.+?|\S+?)(?::(\d+))?: (.+)", line)) and Path(place[1]).is_file():
            number = int(place[2]) if place[2] else None
            mistakes.append(Mistake(file=Path(place[1]), line=number, sentence=place[3]))
        else:  # e.g., the final "and N more" line
            mistakes.append(Mistake(file=path, line=None, sentence=line))
    return mistakes


def mistakes_of(project: "OpenProject", component: Dataset, path: Path, *, tried: bool = False) -> list[Mistake]:
    """Return the mistakes of a dataset that could be loaded from the `defs.yaml` at `path`.

    Args:
        project: Its project.
        component: The dataset.
        path: Its declaration.
        tried: Whether the user's own code is run on a few rows of the source.
    """
    remarks = (
        *component.remarks(),
        *_of_other_datasets(project, component),
        *_of_engine(component),
        *_of_storage(project, component),
        *_pending(project, component),
        *(component.tried() if tried else ()),
    )
    (document, *_) = read_documents(path)
    # of what is wrong for certain no hint says more
    wrong = {remark.keys for remark in remarks if not remark.hint}
    privacy = privacy_of(component.declaration, component.store(project.storage))
    return [
        Mistake(
            file=path,
            line=document.line_of(remark.keys),
            # a mistake in the declaration repeats it; what else is remarked comes from the source, and may quote it
            sentence=privacy.text(remark.sentence, f"{'.'.join(map(str, remark.keys))}: look at the source")
            if remark.hint or remark.of_source
            else remark.sentence,
            hint=remark.hint,
            of_source=remark.of_source,
        )
        for remark in remarks
        if not (remark.hint and remark.keys in wrong)
    ]


def _of_engine(component: Dataset) -> Iterator[Remark]:
    """A remark if what is to do the work is not installed."""
    if isinstance(component.declaration, MadeByEngine):
        try:
            require_engine(os.environ, component.declaration.run_on)
        except ConfigError as error:
            yield Remark(keys=("run_on",), sentence=str(error))


def _of_storage(project: "OpenProject", component: Dataset) -> Iterator[Remark]:
    """A remark if the artifacts cannot be written into the folder that is to hold them, or a library is missing."""
    declared = component.declaration.storage
    place = project.open_store(declared)
    if not isinstance(place, LocalPlace):
        if missing := missing_library(place.url):
            yield Remark(keys=("storage",), sentence=f"{place.url}: {missing}")
        return
    # by `lexists`: a link that leads nowhere is in the way as well
    there = next(path for path in (place.root, *place.root.parents) if os.path.lexists(path))
    begins = f"storage: {place.root}: " if declared is not None else f"DATAPREP_ROOT: {place.root}: "
    if not there.is_dir():
        yield Remark(keys=("storage",), sentence=f"{begins}must be a folder, but {there} is a file")
    elif not os.access(there, os.W_OK | os.X_OK):
        yield Remark(keys=("storage",), sentence=f"{begins}not writable: you cannot write to {there}")


def _pending(project: "OpenProject", component: Dataset) -> list[Remark]:
    """What is declared and no run takes up, by the artifacts in a folder: a bucket is not asked by a check."""
    if not isinstance(project.open_store(component.declaration.storage), LocalPlace):
        return []
    with suppress(DataprepError):  # the commands that read it say what is wrong with it
        return list(component.pending(component.store(project.storage)))
    return []


def _of_other_datasets(project: "OpenProject", component: Dataset) -> Iterator[Remark]:
    """A remark for each input dataset that is of another kind, made of this one, or not declared here: another
    project's, or misspelt."""
    declared = project.names
    for source in _splits(component):
        if source.dataset in declared:
            yield from _of_another_split(project, source)
    for source in _inputs(component).values():
        name = source.dataset
        if name in declared:
            yield from _of_another_kind(project, source)
            yield from _of_itself(project, component, source)
            for other in project.load_all([name]):
                yield from component.remarks_on(other)
            continue
        near = nearest(name, declared)
        sentence = f"`{'.'.join(source.keys)}`: unknown dataset {name}; " + (
            f"did you mean {near!r}?" if near else "an input of another project must be in the same storage"
        )
        yield Remark(keys=source.keys, sentence=sentence, hint=True)


def _inputs(component: Dataset) -> dict[str, DatasetInput]:
    """Each other dataset of which a dataset is made, with one of the artifacts."""
    inputs = [source for spec in component.specs for source in spec.inputs if isinstance(source, DatasetInput)]
    return {source.dataset: source for source in inputs}


def _splits(component: Dataset) -> list[DatasetInput]:
    """Each split of another dataset that a dataset is made of."""
    inputs = [source for spec in component.specs for source in spec.inputs if isinstance(source, DatasetInput)]
    return [source for source in dict.fromkeys(inputs) if source.split is not None]


def _of_another_split(project: "OpenProject", source: DatasetInput) -> Iterator[Remark]:
    """A remark if a declared dataset has no such split."""
    for dataset in project.load_all([source.dataset]):
        there = [spec.split for spec in dataset.specs if spec.name == source.name and spec.split is not None]
        if there and source.split not in there:
            sentence = (
                f"`{'.'.join(source.keys)}`: {source.dataset}: unknown split {source.split!r}. Available: "
                f"{', '.join(there)}"
            )
            yield Remark(keys=source.keys, sentence=sentence)


def _of_itself(project: "OpenProject", component: Dataset, source: DatasetInput) -> Iterator[Remark]:
    """A remark if an input dataset is, over others or not, made of this one: none of them could be made first."""
    own, seen, waiting = component.declaration.dataset, set[str](), [source.dataset]
    while waiting:
        name = waiting.pop()
        for dataset in project.load_all([name]) if name not in seen else ():
            others = _inputs(dataset)
            if own in others:
                sentence = (
                    f"`{'.'.join(source.keys)}`: {source.dataset}: {name} is itself built from {own}, so neither can "
                    "be built first. Remove one of these inputs"
                )
                yield Remark(keys=source.keys, sentence=sentence)
                return
            waiting += others
        seen.add(name)


def _of_another_kind(project: "OpenProject", source: DatasetInput) -> Iterator[Remark]:
    """A remark if a declared dataset never has the artifact that another one is made of; one that is broken says so."""
    for found in project.load_all([source.dataset]):
        if not any(spec.name == source.name for spec in found.specs):
            told = (
                f"`{'.'.join(source.keys)}`: {source.dataset}: a {found.component} has no artifact `{source.name}`"
                + (source.advice and f". {source.advice}")
            )
            yield Remark(keys=source.keys, sentence=told)
