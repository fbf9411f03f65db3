"""Finds mistakes in declarations, and in the files and libraries that they name, before a build."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep_assets.declarations import read_searchable_text
from dataprep_assets.engine.artifact.dataset import Dataset
from dataprep_assets.engine.artifact.spec import DatasetInput
from dataprep_assets.engine.lineage.openlineage import check_target
from dataprep_assets.engine.privacy import load_privacy
from dataprep_assets.engine.yaml.declaration import WorkersDeclaration
from dataprep_assets.engine.yaml.declared_keys import find_nearest
from dataprep_assets.engine.yaml.mistakes import read_documents
from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.errors import ConfigError, DataprepError
from dataprep_assets.execution.pool import choose_engine, choose_worker_count, require_engine
from dataprep_assets.stores.connect import LocalAddress, S3Address, explain_missing_library
from dataprep_assets.stores.endpoints import check_region

if TYPE_CHECKING:
    from dataprep_assets.library.project import OpenProject


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A mistake in a declaration, or a hint at a possible one.

    Attributes:
        file: The `defs.yaml`, or a file that it names.
        line: The line in the file, from 1; None if the mistake concerns the file as a whole.
        sentence: The mistake, and how to correct it.
        hint: Whether it is only a possible mistake, which does not prevent a run.
        of_source: Whether only the source shows it. A run of an up-to-date dataset does not search for such mistakes.
    """

    file: Path
    line: int | None
    sentence: str
    hint: bool = False
    of_source: bool = False

    def __str__(self) -> str:
        location = f":{self.line}" if self.line else ""
        # Print the sentence in full, because `find_dataset_mistakes` has already replaced text that may be private.
        return f"{self.file}{location}: {self.sentence}"

    def to_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints, with its documented keys."""
        return {"file": str(self.file), "line": self.line, "sentence": self.sentence, "hint": self.hint}


def require_sound_environment() -> None:
    """Raise ConfigError if the locale, or a variable that controls execution, is invalid."""
    if (encoding := sys.getfilesystemencoding()) != "utf-8":
        # Refuse other encodings, because manifests contain file names, which must not depend on the machine.
        raise ConfigError(
            f"LC_ALL, LC_CTYPE or LANG: file names are decoded as {encoding}, not UTF-8. Set LC_ALL=C.UTF-8, and "
            "unset PYTHONUTF8 and PYTHONCOERCECLOCALE"
        )
    choose_worker_count(None)
    choose_engine(os.environ)


def find_file_mistakes(project: "OpenProject", path: Path) -> list[Mistake]:
    """Return the mistakes in a `defs.yaml`; an empty list if it declares no dataset."""
    try:
        component = project.declarations.load(path)
        return find_dataset_mistakes(project, component, path, tried=True) if isinstance(component, Dataset) else []
    except DataprepError as error:
        return _parse_mistakes(str(error), path)


def _parse_mistakes(text: str, path: Path) -> list[Mistake]:
    """Return a mistake per line of a loading error. A line usually begins with its location."""
    mistakes: list[Mistake] = []
    for line in text.splitlines():
        # Allow spaces in an absolute path, because names of folders may contain spaces.
        if (place := re.match(r"(/.+?|\S+?)(?::(\d+))?: (.+)", line)) and Path(place[1]).is_file():
            number = int(place[2]) if place[2] else None
            mistakes.append(Mistake(file=Path(place[1]), line=number, sentence=place[3]))
        else:  # the line has no location, e.g., the final "and N more" line
            mistakes.append(Mistake(file=path, line=None, sentence=line))
    return mistakes


def find_dataset_mistakes(
    project: "OpenProject", component: Dataset, path: Path, *, tried: bool = False
) -> list[Mistake]:
    """Return the mistakes of a dataset that was loaded from the `defs.yaml` at `path`.

    Args:
        project: Its project.
        component: The dataset.
        path: Its declaration.
        tried: Whether to run the user's own code on a few rows of the source.
    """
    remarks = (
        *component.remarks(),
        *_find_input_remarks(project, component),
        *_find_engine_remarks(component),
        *_find_lineage_remarks(component),
        *_find_publication_remarks(project, component),
        *_find_storage_remarks(project, component),
        *_find_pending_remarks(project, component),
        *(component.find_trial_remarks() if tried else ()),
    )
    (document, *_) = read_documents(path)
    # Leave out hints for keys with a definite mistake, because correcting the mistake may resolve them.
    wrong_keys = {remark.keys for remark in remarks if not remark.hint}
    privacy = load_privacy(component.declaration, component.store(project.storage))
    # Remove duplicates, because looking for a function and calling it may find the same mistake.
    mistakes = dict.fromkeys(
        Mistake(
            file=path,
            line=document.find_line(remark.keys),
            # A mistake quotes only the declaration, but other remarks may quote the source.
            sentence=privacy.public_text(remark.sentence, f"{'.'.join(map(str, remark.keys))}: check the source")
            if remark.hint or remark.of_source
            else remark.sentence,
            hint=remark.hint,
            of_source=remark.of_source,
        )
        for remark in remarks
        if not (remark.hint and remark.keys in wrong_keys)
    )
    return list(mistakes)


def _find_engine_remarks(component: Dataset) -> Iterator[Remark]:
    """Yield a remark if the library that runs the workers is not installed."""
    if isinstance(component.declaration, WorkersDeclaration):
        try:
            require_engine(os.environ, component.declaration.run_on)
        except ConfigError as error:
            yield Remark(keys=("run_on",), sentence=str(error))


def _find_lineage_remarks(component: Dataset) -> Iterator[Remark]:
    """Yield a remark if lineage events cannot be sent, or would be sent unencrypted."""
    lineage = component.declaration.lineage
    if lineage is not None and lineage.openlineage is not None:
        try:
            check_target(lineage.openlineage)
        except ConfigError as error:
            yield Remark(keys=("lineage", "openlineage"), sentence=str(error))


def _find_publication_remarks(project: "OpenProject", component: Dataset) -> Iterator[Remark]:
    """Yield remarks on a publication that would be refused: on its repository, its owner and the Hub's settings."""
    if (target := component.declaration.publish) is None:
        return
    from huggingface_hub import constants, get_token

    from dataprep_assets.sources.hub import HubRepo

    def require_url() -> str:
        return HubRepo(repo_id=target.hub, endpoint=target.endpoint, allow_http=target.allow_http).hub_url

    for require in (target.require_owner, require_url):
        try:
            require()
        except ConfigError as error:
            yield Remark(keys=("publish",), sentence=f"publish: {error}")
    # Load only declarations with this name, because a project may have many datasets.
    names = [name for name in project.names if target.hub in read_searchable_text(project.declaration_of(name))]
    for other_dataset in project.load_all(name for name in names if name != component.declaration.dataset):
        other_target = other_dataset.declaration.publish
        if other_target is not None and (other_target.hub, other_target.endpoint) == (target.hub, target.endpoint):
            yield Remark(
                keys=("publish", "hub"),
                sentence=f"publish.hub: {target.hub} is also the repository of {other_dataset.declaration.dataset}. "
                "Use a different repository for each dataset",
            )
    if constants.HF_HUB_OFFLINE:
        yield Remark(
            keys=("publish",), sentence="publish: HF_HUB_OFFLINE is set. Unset it before you publish", hint=True
        )
    if get_token() is None:
        yield Remark(
            keys=("publish",),
            sentence="publish: no token for the Hub. Set HF_TOKEN to a token with write access before you publish",
            hint=True,
        )


def _find_storage_remarks(project: "OpenProject", component: Dataset) -> Iterator[Remark]:
    """Yield a remark if the storage folder is not writable, or the library of the store is missing."""
    storage_setting = component.declaration.storage
    place = project.open_store(storage_setting)
    if not isinstance(place, LocalAddress):
        if missing := explain_missing_library(place.url):
            yield Remark(keys=("storage",), sentence=f"{place.url}: {missing}")
        # Check this variable, because a storage's region comes only from the variable or from the AWS profile.
        if isinstance(place, S3Address) and (region := os.environ.get("AWS_DEFAULT_REGION")):
            try:
                check_region(region, "AWS_DEFAULT_REGION")
            except ConfigError as error:
                yield Remark(keys=("storage",), sentence=str(error))
        return
    # Use `lexists`, because mkdir cannot create a folder at a broken link.
    existing_folder = next(path for path in (place.root, *place.root.parents) if os.path.lexists(path))
    begins = f"storage: {place.root}: " if storage_setting is not None else f"DATAPREP_ROOT: {place.root}: "
    if not existing_folder.is_dir():
        yield Remark(keys=("storage",), sentence=f"{begins}must be a folder, but {existing_folder} is not a folder")
        return
    # Check the dataset's folders now, because a run would reach some of them only after hours of work on other
    # artifacts.
    dataset = place.root / component.declaration.dataset
    folders = [dataset, *sorted(dataset.iterdir())] if dataset.is_dir() and os.access(dataset, os.R_OK) else [dataset]
    for folder in (existing_folder, *(folder for folder in folders if folder.is_dir())):
        if not os.access(folder, os.W_OK | os.X_OK):
            yield Remark(keys=("storage",), sentence=f"{begins}cannot write to {folder}. Change its permissions")
            return


def _find_pending_remarks(project: "OpenProject", component: Dataset) -> list[Remark]:
    """Return remarks on declared changes that no run applies; none for a bucket, because a check must not read it."""
    if not isinstance(project.open_store(component.declaration.storage), LocalAddress):
        return []
    with suppress(DataprepError):  # the commands that read the artifact report the error
        return list(component.pending(component.store(project.storage)))
    return []


def _find_input_remarks(project: "OpenProject", component: Dataset) -> Iterator[Remark]:
    """Yield a remark for each input dataset that is unknown, is of the wrong kind, or is built from this dataset."""
    names = project.names
    for source in _list_split_inputs(component):
        if source.dataset in names:
            yield from _find_unknown_split_remarks(project, source)
    for source in _list_inputs(component).values():
        name = source.dataset
        if name in names:
            yield from _find_cycle_remarks(project, component, source)
            for input_dataset in project.load_all([name]):
                source_remarks = list(component.find_source_remarks(input_dataset))
                yield from source_remarks
                # Leave out the general sentence about a missing artifact if the dataset has a definite mistake.
                if all(remark.hint for remark in source_remarks):
                    yield from _find_wrong_kind_remarks(input_dataset, source)
                if input_dataset.declaration.sensitive:
                    for sentence in filter(None, (spec.sensitive_input for spec in component.specs)):
                        yield Remark(keys=(sentence.partition(":")[0],), sentence=sentence.format(name=name))
            continue
        nearest_name = find_nearest(name, names)
        sentence = f"`{'.'.join(source.keys)}`: unknown dataset {name}; " + (
            f"did you mean {nearest_name!r}?"
            if nearest_name
            else "an input of another project must be in the same storage"
        )
        yield Remark(keys=source.keys, sentence=sentence, hint=True)


def _list_inputs(component: Dataset) -> dict[str, DatasetInput]:
    """Return one input per other dataset from which a dataset is built, by the name of the other dataset."""
    inputs = [source for spec in component.specs for source in spec.inputs if isinstance(source, DatasetInput)]
    return {source.dataset: source for source in inputs}


def _list_split_inputs(component: Dataset) -> list[DatasetInput]:
    """Return the inputs that are a split of another dataset, each once."""
    inputs = [source for spec in component.specs for source in spec.inputs if isinstance(source, DatasetInput)]
    return [source for source in dict.fromkeys(inputs) if source.split is not None]


def _find_unknown_split_remarks(project: "OpenProject", source: DatasetInput) -> Iterator[Remark]:
    """Yield a remark if the input dataset has no such split."""
    for dataset in project.load_all([source.dataset]):
        available_splits = [spec.split for spec in dataset.specs if spec.name == source.name and spec.split is not None]
        if available_splits and source.split not in available_splits:
            sentence = (
                f"`{'.'.join(source.keys)}`: {source.dataset}: unknown split {source.split!r}. Available: "
                f"{', '.join(available_splits)}"
            )
            yield Remark(keys=source.keys, sentence=sentence)


def _find_cycle_remarks(project: "OpenProject", component: Dataset, source: DatasetInput) -> Iterator[Remark]:
    """Yield a remark if an input dataset is itself built from this one, directly or through other datasets."""
    own_name, visited_names, open_names = component.declaration.dataset, set[str](), [source.dataset]
    while open_names:
        name = open_names.pop()
        for dataset in project.load_all([name]) if name not in visited_names else ():
            input_names = _list_inputs(dataset)
            if own_name in input_names:
                sentence = (
                    f"`{'.'.join(source.keys)}`: {source.dataset}: {name} is itself built from {own_name}, so neither "
                    "can be built first. Remove one of these inputs"
                )
                yield Remark(keys=source.keys, sentence=sentence)
                return
            open_names += input_names
        visited_names.add(name)


def _find_wrong_kind_remarks(dataset: Dataset, source: DatasetInput) -> Iterator[Remark]:
    """Yield a remark if an input dataset does not build the required artifact."""
    if not any(spec.name == source.name for spec in dataset.specs):
        sentence = (
            f"`{'.'.join(source.keys)}`: {source.dataset}: a {dataset.component} has no artifact `{source.name}`"
            + (source.advice and f". {source.advice}")
        )
        yield Remark(keys=source.keys, sentence=sentence)
