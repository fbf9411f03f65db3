"""A declared dataset as a Dagster component: assets, checks, job and automation follow from its list of artifacts."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar, cast

import dagster as dg
from pydantic import BaseModel, create_model, model_validator

from dataprep_assets.engine.artifact.dataset import Dataset
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.card.products import products
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.engine.yaml.declared_templates import rendered
from dataprep_assets.errors import ConfigError
from dataprep_assets.execution.run_task import without_core
from dataprep_assets.orchestration.assets import asset_of
from dataprep_assets.orchestration.build import job_of
from dataprep_assets.orchestration.checks import checks_of
from dataprep_assets.orchestration.sensors.automation import automation_of, check_crons
from dataprep_assets.orchestration.sensors.freshness import policy_of
from dataprep_assets.orchestration.shipped_datasets import TAG, is_shown, shown_as
from dataprep_assets.orchestration.upstream import asked_of_the_environment

D = TypeVar("D", bound=DatasetDeclaration)
# a process that Dagster starts opens no project: there the instance of its environment answers about other assets
asked_of_the_environment()


class _AsWritten(BaseModel):
    """The attributes of a component as they are written in its YAML."""

    attributes: Any


@cache
def _unjudged(model: type[D]) -> type[D]:
    """A variant of the model, with its schema, that passes on every attribute as it is written.

    Dagster validates attributes with a component's model before it loads the component: it would report mistakes in
    its own words, and a validated value is no longer what is written (`./x` is `x`). So `DatasetComponent.load`
    validates them, which knows the file.
    """

    def handed_on(value: Any, handler: Callable[[Any], Any]) -> Any:
        return _AsWritten(attributes=value)

    validators: dict[str, Any] = {"handed_on": model_validator(mode="wrap")(cast("Any", handed_on))}
    return create_model(
        model.__name__, __base__=model, __module__=model.__module__, __doc__=model.__doc__, __validators__=validators
    )


def definitions_of(specs: Sequence[ArtifactSpec], tags: Mapping[str, str] = MappingProxyType({})) -> dg.Definitions:
    """The assets, checks and job of a dataset, and what its declaration automates.

    Args:
        specs: All its artifacts, inputs before what is made of them.
        tags: Tags of its assets, in addition to those of its declaration.
    """
    job = job_of(specs)
    made, policy = products(specs), policy_of(specs[0].declaration.automation)
    definitions = dg.Definitions(
        assets=[asset_of(spec, tags, policy if spec in made else None) for spec in specs],
        asset_checks=[checks_of(spec) for spec in specs if spec.checks],
        jobs=[job],
    )
    return dg.Definitions.merge(definitions, automation_of(specs, job))


def definitions_of_dataset(dataset: Dataset) -> dg.Definitions:
    """The assets, checks, job and automation of a declared dataset, shown or not."""
    kind = _kind(dataset)
    return definitions_of(
        dataset.specs, {"dataprep/pipeline": dataset.pipeline, **({} if kind is None else {TAG: kind})}
    )


def _kind(dataset: Dataset) -> str | None:
    return None if dataset.folder is None else shown_as(dataset.folder)


class DatasetComponent(Dataset, dg.Component):
    """A dataset as Dagster's component: those of `dataprep_assets.components` are this, and the dataset of a wing."""

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        return _unjudged(cls.model)

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        if attributes is None:
            raise ConfigError(
                f"{context.path / 'defs.yaml'}: `attributes` is missing; `dg scaffold defs` writes a commented example"
            )
        written = cast("_AsWritten", attributes).attributes
        yaml_path = Path(context.path) / "defs.yaml"
        scope = context.resolution_context.scope
        component = cls.from_attributes(rendered(written, scope, yaml_path, cls.own_templates(written)), yaml_path)
        if component.declaration.automation is not None:
            check_crons(component.declaration.automation, yaml_path)
        return component

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """What the code location shows of the dataset: nothing if it is a shipped dataset that is hidden."""
        if self.declaration.sensitive:
            without_core()  # a run that Dagster starts loads this first, and holds texts and keys later
        return definitions_of_dataset(self) if is_shown(_kind(self)) else dg.Definitions()
