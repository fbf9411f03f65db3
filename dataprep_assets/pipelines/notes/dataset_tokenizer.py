"""Finds the tokenizer of another dataset: no receipt has its path, but the dataset's own `defs.yaml` has.

Entry point: `tokenizer_beside`.
"""

from pathlib import Path

from pydantic import ValidationError

from dataprep_assets.engine.yaml.mistakes import read_documents
from dataprep_assets.errors import ConfigError
from dataprep_assets.project import read_project
from dataprep_assets.stream.declaration import TokenizerDeclaration


def tokenizer_beside(folder: Path | None, dataset: str) -> str | None:
    """The folder of a dataset's tokenizer, or its name on the hub, from its `defs.yaml`.

    Searched in the project of ``folder``, that of another `defs.yaml`. None if the dataset is not declared there, or if
    its declaration is broken; its own commands say what is wrong.
    """
    for path in _declarations(folder) if folder is not None else ():
        try:
            every = [document.attributes for document in read_documents(path)]
        except (ConfigError, OSError):
            continue
        for attributes in every:
            if isinstance(attributes, dict) and attributes.get("dataset") == dataset:
                try:
                    found = TokenizerDeclaration.model_validate(attributes.get("tokenizer")).located(path.parent)
                except ValidationError:
                    return None
                return str(found.path or found.repo)
    return None


def _declarations(folder: Path) -> list[Path]:
    project = next((found for parent in folder.parents if (found := read_project(parent)) is not None), None)
    return sorted((folder.parent if project is None else project.defs).rglob("defs.yaml"))
