"""Mistakes in declarations, and in the files and libraries that they name, found before a build."""

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
    """A mistake in a declaration, or a hint at a possible one.

    Attributes:
        file: The `defs.yaml`, or a file that it names.
        line: The line there, from 1; None if it is about the file as a whole.
        sentence: The mistake, and how to correct it.
        hint: Whether it is only a possible mistake, which does not prevent a run.
        of_source: Whether only the source shows it, so a run of an up-to-date dataset does not look for it.
    """

    file: Path
    line: int | None
    sentence: str
    hint: bool = False
    of_source: bool = False

    def __str__(self) -> str:
        where = f":{self.line}" if self.line else ""
        # small counts are already removed, so it can be printed as it is
        return f"{self.file}{where}: {self.sentence}"

    def to_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints, with its documented keys."""
        return {"file": str(self.file), "line": self.line, "sentence": self.sentence, "hint": self.hint}


def require_sound_environment() -> None:
    """Raise ConfigError if the locale, or a variable that controls execution, is invalid."""
    if (encoding := sys.getfilesystemencoding()) != "utf-8":
        # manifests contain file names, which must not depend on the machine that reads them
        raise ConfigError(
            f"LC_ALL, LC_CTYPE or LANG: file names are decoded as {encoding}, not UTF-8. Set LC_ALL=C.UTF-8, and "
            "unset PYTHONUTF8 and PYTHONCOERCECLOCALE"
        )
    worker_count(None)
    chosen_engine(os.environ)


def mistakes_in(project: "OpenProject", path: Path) -> list[Mistake]:
    """Return the mistakes in a `defs.yaml`; an empty list if it declares no dataset."""
    try:
        component = project.declarations.load(path)
        return mistakes_of(project, component, path, tried=True) if isinstance(component, Dataset) else []
    except DataprepError as error:
        return _mistakes_of_error(str(error), path)


def _mistakes_of_error(text: str, path: Path) -> list[Mistake]:
    """Return a mistake per line of a loading error. A line usually begins with its location."""
    mistakes: list[Mistake] = []
    for line in text.splitlines():
        # an absolute path may contain spaces
        if (place := re.match(r"(/.+?|\S+?)(?::(\d+))?: (.+)", line)) and Path(place[1]).is_file():
            number = int(place[2]) if place[2] else None
            mistakes.append(Mistake(file=Path(place[1]), line=number, sentence=place[3]))
        else:  # e.g., the final "and N more" line
            mistakes.append(Mistake(file=path, line=None, sentence=line))
    return mistakes


def mistakes_of(project: "OpenProject", component: Dataset, path: Path, *, tried: bool = False) -> list[Mistake]:
    """Return the mistakes of a dataset that was loaded from the `defs.yaml` at `path`.

    Args:
        project: Its project.
        component: The dataset.
        path: Its declaration.
        tried: Whether to run the user's own code on a few rows of the source.
    """
    remarks = (
        *component.remarks(),
        *_input_remarks(project, component),
        *_engine_remarks(component),
        *_storage_remarks(project, component),
        *_pending_remarks(project, component),
        *(component.trial_remarks() if tried else ()),
    )
    (document, *_) = read_documents(path)
    # a hint adds nothing to a certain mistake in the same key
    wrong = {remark.keys for remark in remarks if not remark.hint}
    privacy = privacy_of(component.declaration, component.store(project.storage))
    return [
        Mistake(
            file=path,
            line=document.line_of(remark.keys),
            # a mistake in the declaration quotes only the declaration; other remarks may quote the source
            sentence=privacy.text(remark.sentence, f"{'.'.join(map(str, remark.keys))}: look at the source")
            if remark.hint or remark.of_source
            else remark.sentence,
            hint=remark.hint,
            of_source=remark.of_source,
        )
        for remark in remarks
        if not (remark.hint and remark.keys in wrong)
    ]


def _engine_remarks(component: Dataset) -> Iterator[Remark]:
    """Yield a remark if the library that runs the workers is not installed."""
    if isinstance(component.declaration, MadeByEngine):
        try:
            require_engine(os.environ, component.declaration.run_on)
        except ConfigError as error:
            yield Remark(keys=("run_on",), sentence=str(error))


def _storage_remarks(project: "OpenProject", component: Dataset) -> Iterator[Remark]:
    """Yield a remark if the storage folder is not writable, or the library of the store is missing."""
    declared = component.declaration.storage
    place = project.open_store(declared)
    if not isinstance(place, LocalPlace):
        if missing := missing_library(place.url):
            yield Remark(keys=("storage",), sentence=f"{place.url}: {missing}")
        return
    # `lexists`, because a broken link also blocks the folder
    there = next(path for path in (place.root, *place.root.parents) if os.path.lexists(path))
    begins = f"storage: {place.root}: " if declared is not None else f"DATAPREP_ROOT: {place.root}: "
    if not there.is_dir():
        yield Remark(keys=("storage",), sentence=f"{begins}must be a folder, but {there} is a file")
    elif not os.access(there, os.W_OK | os.X_OK):
        yield Remark(keys=("storage",), sentence=f"{begins}not writable: you cannot write to {there}")


def _pending_remarks(project: "OpenProject", component: Dataset) -> list[Remark]:
    """Return remarks on declared changes that no run applies; none for a bucket, because a check must not read it."""
    if not isinstance(project.open_store(component.declaration.storage), LocalPlace):
        return []
    with suppress(DataprepError):  # the commands that read the artifact report the error
        return list(component.pending(component.store(project.storage)))
    return []


def _input_remarks(project: "OpenProject", component: Dataset) -> Iterator[Remark]:
    """Yield a remark for each input dataset of a wrong kind, built from this one, or unknown in this project."""
    declared = project.names
    for source in _splits(component):
        if source.dataset in declared:
            yield from _unknown_split_remarks(project, source)
    for source in _inputs(component).values():
        name = source.dataset
        if name in declared:
            yield from _wrong_kind_remarks(project, source)
            yield from _cycle_remarks(project, component, source)
            for other in project.load_all([name]):
                yield from component.remarks_on(other)
            continue
        near = nearest(name, declared)
        sentence = f"`{'.'.join(source.keys)}`: unknown dataset {name}; " + (
            f"did you mean {near!r}?" if near else "an input of another project must be in the same storage"
        )
        yield Remark(keys=source.keys, sentence=sentence, hint=True)


def _inputs(component: Dataset) -> dict[str, DatasetInput]:
    """Return name → one input, for each other dataset from which a dataset is built."""
    inputs = [source for spec in component.specs for source in spec.inputs if isinstance(source, DatasetInput)]
    return {source.dataset: source for source in inputs}


def _splits(component: Dataset) -> list[DatasetInput]:
    """Return the inputs that are a split of another dataset, each once."""
    inputs = [source for spec in component.specs for source in spec.inputs if isinstance(source, DatasetInput)]
    return [source for source in dict.fromkeys(inputs) if source.split is not None]


def _unknown_split_remarks(project: "OpenProject", source: DatasetInput) -> Iterator[Remark]:
    """Yield a remark if the input dataset has no such split."""
    for dataset in project.load_all([source.dataset]):
        there = [spec.split for spec in dataset.specs if spec.name == source.name and spec.split is not None]
        if there and source.split not in there:
            sentence = (
                f"`{'.'.join(source.keys)}`: {source.dataset}: unknown split {source.split!r}. Available: "
                f"{', '.join(there)}"
            )
            yield Remark(keys=source.keys, sentence=sentence)


def _cycle_remarks(project: "OpenProject", component: Dataset, source: DatasetInput) -> Iterator[Remark]:
    """Yield a remark if an input dataset is itself built from this one, directly or through other datasets."""
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


def _wrong_kind_remarks(project: "OpenProject", source: DatasetInput) -> Iterator[Remark]:
    """Yield a remark if an input dataset does not build the required artifact. Skips datasets that do not load."""
    for found in project.load_all([source.dataset]):
        if not any(spec.name == source.name for spec in found.specs):
            told = (
                f"`{'.'.join(source.keys)}`: {source.dataset}: a {found.component} has no artifact `{source.name}`"
                + (source.advice and f". {source.advice}")
            )
            yield Remark(keys=source.keys, sentence=told)
