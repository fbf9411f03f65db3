"""Where the tokenizer of another dataset lies: no receipt has a path, but the dataset's own `defs.yaml` has.

Entry point: `tokenizer_beside`.
"""

from pathlib import Path

from pydantic import ValidationError

from dataprep_assets.errors import ConfigError
from dataprep_assets.graph.declaration_mistakes import read
from dataprep_assets.pipelines.corpus.declaration import TokenizerDeclaration

__all__ = ["tokenizer_beside"]


def tokenizer_beside(folder: Path | None, dataset: str) -> str | None:
    """The folder of a dataset's tokenizer, or its name on the hub, as its `defs.yaml` has it.

    Looked for in the folders beside ``folder``, which is that of another `defs.yaml`. None where the dataset is not
    declared there, or not so that its tokenizer can be told; its own commands say what is wrong.
    """
    for path in sorted(folder.parent.glob("*/defs.yaml")) if folder is not None else ():
        try:
            every = [document.attributes for document in read(path)]
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
