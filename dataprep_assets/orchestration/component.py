"""What every component is: a declared dataset, its assets and checks, and the runs that make the whole of it."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import dagster as dg
from pydantic import BaseModel, ValidationError

from dataprep_assets.errors import ConfigError
from dataprep_assets.graph.declaration import DatasetDeclaration
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.dataset import DatasetAssets, Step

D = TypeVar("D", bound=DatasetDeclaration)


def declared(model: type[D], attributes: Mapping[str, Any], yaml_path: Path) -> D:
    """The validated declaration; ConfigError names the file, the key, the value and what is allowed."""
    try:
        return model.model_validate(attributes).located(yaml_path.parent)
    except ValidationError as error:
        hidden = model.model_config.get("hide_input_in_errors", False)  # a secret may stand in a wrong place
        lines = []
        for fault in error.errors():
            where = ": ".join(filter(None, (str(yaml_path), ".".join(str(part) for part in fault["loc"]))))
            lines.append(f"{where}: {fault['msg']}" + ("" if hidden else f" (got {fault['input']!r:.120})"))
        raise ConfigError("\n".join(lines)) from error


class DatasetComponent(dg.Component):
    """One declared dataset. Subclasses name their declaration and build their definitions from it."""

    model: ClassVar[type[DatasetDeclaration]]

    def __init__(self, declaration: DatasetDeclaration) -> None:
        self.declaration = declaration

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        return cls.model

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        if attributes is None:
            raise ConfigError(
                f"{context.path / 'defs.yaml'}: attributes: missing; `dg scaffold defs` writes a commented example"
            )
        resolved = context.resolution_context.resolve_value(attributes.model_dump(mode="json", exclude_unset=True))
        return cls(declared(cls.model, resolved, Path(context.path) / "defs.yaml"))

    @property
    @abstractmethod
    def assets(self) -> DatasetAssets:
        """The Dagster names of the dataset."""

    @abstractmethod
    def steps(self, store: ArtifactStore) -> Iterator[Step]:
        """The runs that make everything the dataset needs, in order. Lazy: a step may depend on what came before."""

    @abstractmethod
    def stale(self, store: ArtifactStore) -> Iterator[str]:
        """Names of artifacts that are missing, damaged or out of date, in build order."""

    @abstractmethod
    def sweep(self, store: ArtifactStore) -> None:
        """Remove what killed runs left beside the artifacts, when nothing is stale."""

    @abstractmethod
    def summary(self, store: ArtifactStore) -> list[str]:
        """Lines that tell a person what was made, at the end of a run."""

    @property
    @abstractmethod
    def product(self) -> tuple[str, str | None]:
        """Name and partition of the artifact that a trainer reads."""
