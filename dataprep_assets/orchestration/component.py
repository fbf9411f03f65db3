"""What every component is: a declared dataset and the list of its artifacts, from which assets and checks follow."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar, cast

import dagster as dg
from pydantic import BaseModel, ValidationError, create_model, model_validator

from dataprep_assets.errors import ConfigError
from dataprep_assets.graph.declaration import DatasetDeclaration
from dataprep_assets.graph.declaration_mistakes import Document, mistakes, read, together
from dataprep_assets.graph.estimate import Estimate
from dataprep_assets.graph.products import products
from dataprep_assets.graph.remark import Remark
from dataprep_assets.graph.retraction import Retracted
from dataprep_assets.graph.spec import ArtifactSpec
from dataprep_assets.graph.trace import Tracer
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.assets import asset_of
from dataprep_assets.orchestration.automation import automation_of, check_crons
from dataprep_assets.orchestration.checks import checks_of
from dataprep_assets.orchestration.dataset_job import job_of
from dataprep_assets.orchestration.freshness import policy_of
from dataprep_assets.orchestration.keys import store_of
from dataprep_assets.orchestration.shipped import TAG, is_shown, shown_as
from dataprep_assets.planning.cost import Machine
from dataprep_assets.resources import StorageResource

D = TypeVar("D", bound=DatasetDeclaration)


def declared(model: type[D], attributes: Mapping[str, Any], yaml_path: Path) -> D:
    """The validated declaration; ConfigError names the file, the key, the value and what is allowed."""
    try:
        return model.model_validate(attributes).located(yaml_path.parent)
    except ValidationError as error:
        document = Document(path=yaml_path, type="", attributes=attributes, node=None, line=0)
        with suppress(ConfigError, OSError):
            # read for the line numbers: attributes come with their templates resolved, and tests have some without a
            # file
            document = next((replace(d, attributes=attributes) for d in read(yaml_path) if d.attributes), document)
        raise ConfigError(together(mistakes(error, model, document))) from None  # the cause would be printed first


class _Given(BaseModel):
    """Raw attributes, as they stand in the YAML, of a declaration that its model refuses."""

    attributes: Any


_AS_GIVEN: Any = {"mode": "json", "exclude_unset": True}


@cache
def _unjudged(model: type[D]) -> type[D]:
    """A variant of the model that passes on invalid attributes instead of raising.

    Dagster validates attributes with a component's model before it loads the component, and would report mistakes in
    its own words, without the allowed values. So they are passed to `DatasetComponent.load`, which knows the file.
    """

    def handed_on(value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(value)
        except ValidationError:
            return _Given(attributes=value)

    validators: dict[str, Any] = {"handed_on": model_validator(mode="wrap")(cast("Any", handed_on))}
    return create_model(
        model.__name__, __base__=model, __module__=model.__module__, __doc__=model.__doc__, __validators__=validators
    )


def _check_accepted(component: "DatasetComponent", yaml_path: Path) -> None:
    """Raise ConfigError if `accept` names a check that does more than warn."""
    if not component.declaration.accept:
        return
    proofs = [proof for spec in component.specs if spec.proofs is not None for proof in spec.proofs.proofs]
    warning = sorted({proof.name for proof in proofs if not proof.blocking})
    for name in component.declaration.accept:
        if name not in warning:
            blocks = any(proof.name == name for proof in proofs)
            wrong = "blocks what is downstream, and cannot be accepted" if blocks else "is not a check of this dataset"
            raise ConfigError(f"{yaml_path}: accept.{name}: {wrong}; those that only warn are {warning}")


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
        asset_checks=[checks_of(spec) for spec in specs if spec.proofs is not None],
        jobs=[job],
    )
    return dg.Definitions.merge(definitions, automation_of(specs, job))


class DatasetComponent(dg.Component):
    """One declared dataset. Subclasses name their declaration and make the list of its artifacts from it."""

    pipeline: ClassVar[str]
    """Name of the pipeline (its wing), with which the assets are tagged."""
    model: ClassVar[type[DatasetDeclaration]]
    shown_as: str | None = None
    """`sample` or `example` of a dataset that this project ships."""

    def __init__(self, declaration: DatasetDeclaration) -> None:
        self.declaration = declaration

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        return _unjudged(cls.model)

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        if attributes is None:
            raise ConfigError(
                f"{context.path / 'defs.yaml'}: `attributes` is missing; `dg scaffold defs` writes a commented example"
            )
        given = attributes.attributes if isinstance(attributes, _Given) else attributes.model_dump(**_AS_GIVEN)
        resolved = context.resolution_context.resolve_value(given)
        yaml_path = Path(context.path) / "defs.yaml"
        component = cls(declared(cls.model, resolved, yaml_path))
        _check_accepted(component, yaml_path)
        component.shown_as = shown_as(Path(context.path))
        if component.declaration.automation is not None:
            check_crons(component.declaration.automation, yaml_path)
        return component

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """What the code location shows of the dataset: nothing if it is a shipped dataset that is hidden."""
        return self.definitions if is_shown(self.shown_as) else dg.Definitions()

    @property
    def definitions(self) -> dg.Definitions:
        """The assets, checks, job and automation of the dataset, shown or not."""
        shown = {TAG: self.shown_as} if self.shown_as is not None else {}
        return definitions_of(self.specs, {"dataprep/pipeline": self.pipeline, **shown})

    @property
    @abstractmethod
    def specs(self) -> Sequence[ArtifactSpec]:
        """The graph: every artifact of the dataset, inputs first. Every call returns the same objects."""

    @abstractmethod
    def product(self, store: ArtifactStore) -> Artifact:
        """The artifact that a trainer reads."""

    @abstractmethod
    def summary(self, store: ArtifactStore) -> list[str]:
        """Lines that say what was made, printed at the end of a run."""

    def standing(self, store: ArtifactStore) -> Sequence[str]:
        """Lines that matter whatever a run did: printed also if it failed or had nothing to do, and by `status`.

        `summary` includes them.
        """
        return ()

    def remarks(self) -> Iterable[Remark]:
        """Remarks on the declaration that can be made cheaply, before anything is built."""
        return ()

    def cost(self, store: ArtifactStore, machine: Machine) -> Estimate:
        """What building the whole dataset will cost; raises ConfigError for a kind without a plan of token shards."""
        raise ConfigError(
            f"plan: {self.declaration.dataset}: only corpora, releases and pretraining blends have a plan of token "
            "shards, from which a cost can be told; this dataset's work is known when its source has been read"
        )

    def tracer(self, store: ArtifactStore) -> Tracer:
        """Finds documents in its artifacts.

        Raises ConfigError for a kind whose artifacts do not say where documents lie.
        """
        raise ConfigError(
            f"trace: {self.declaration.dataset}: only corpora, releases, notes and blends for pretraining or chat can "
            "be traced: artifacts of other kinds do not record which row is where"
        )

    def retract(self, store: ArtifactStore, ids: Path) -> Retracted:
        """Put the documents or patients that a list of ids names on the dataset's retraction list.

        Args:
            store: Where its artifacts are; they are only read.
            ids: The file of the list, with one id on each line.

        Raises ConfigError, naming the line, for a list that is empty or malformed; and for a kind of dataset that has
        no documents of its own.
        """
        raise ConfigError(
            f"{self.declaration.dataset} is a {type(self).__name__}: documents are retracted of corpora and releases, "
            "patients of notes. Retract them of the dataset that it is made of"
        )

    def store(self, storage: StorageResource) -> ArtifactStore:
        """Where the dataset's artifacts are."""
        return store_of(self.declaration, storage)

    def spec(self, name: str, split: str | None = None) -> ArtifactSpec:
        """The artifact with this name; raises KeyError when the dataset has none."""
        for spec in self.specs:
            if (spec.name, spec.split) == (name, split):
                return spec
        raise KeyError(f"{self.declaration.dataset} has no artifact {name} {split or ''}")
