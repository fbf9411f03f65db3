"""Dagster component of a declared dataset: its assets, checks, job and automation are derived from its artifacts."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar, cast

import dagster as dg
from pydantic import BaseModel, create_model, model_validator

from dataprep_assets.bounds import disable_core_dumps
from dataprep_assets.engine.artifact.dataset import Dataset
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.card.products import find_products
from dataprep_assets.engine.staleness.decide import Action
from dataprep_assets.engine.staleness.status import decide_checks
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.engine.yaml.mistakes import render_templates
from dataprep_assets.errors import ConfigError
from dataprep_assets.orchestration.build import build_job
from dataprep_assets.orchestration.checks import build_checks
from dataprep_assets.orchestration.metadata import build_definition_metadata, build_step_result
from dataprep_assets.orchestration.partitions import (
    DATASET,
    SENSITIVE,
    asset_key,
    build_partitions_definition,
    job_name,
)
from dataprep_assets.orchestration.runs.runs import POOLS, build_plan_metadata, hold_run_lock_until_exit
from dataprep_assets.orchestration.runs.step_build import StepBuild, convert_errors
from dataprep_assets.orchestration.sensors.automation import build_automation, check_crons
from dataprep_assets.orchestration.sensors.freshness import build_policy
from dataprep_assets.planning.cost import SHARDS_PER_RUN
from dataprep_assets.project import SHOWN_AS, find_shipped_kind, is_shown
from dataprep_assets.resources import StorageResource, io_manager
from dataprep_assets.sources.upstream import Materialization, set_provider
from dataprep_assets.stores.files import private_files

_PAGE = 1000


def use_own_instance() -> None:
    """Read the materializations of other assets from this process's instance, unless another provider is set."""
    set_provider(_load_environment_materializations, lambda: os.environ.get("DAGSTER_HOME"), by_default=True)


def _load_environment_materializations(key: Sequence[str]) -> list[Materialization]:
    try:
        with dg.DagsterInstance.get() as instance:
            return read_latest_materializations(instance, key)
    except dg.DagsterError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"source.key: the Dagster instance of this process cannot be opened: {reason:.300}"
        ) from error


def read_latest_materializations(instance: dg.DagsterInstance, key: Sequence[str]) -> list[Materialization]:
    """Return the latest materialization of an asset, or of each of its materialized partitions, sorted by partition."""
    asset = dg.AssetKey(list(key))
    event = instance.get_latest_materialization_event(asset)
    if event is None or event.asset_materialization is None:
        return []
    if event.asset_materialization.partition is None:
        return [_read_materialization(event.asset_materialization)]
    remaining = set(instance.get_materialized_partitions(asset))
    materializations: dict[str, Materialization] = {}
    cursor: str | None = None
    # Events come newest first, so a partition's first event is its latest.
    while remaining:
        page = instance.fetch_materializations(asset, limit=_PAGE, cursor=cursor)
        for record in page.records:
            materialization = record.asset_materialization
            if materialization is not None and materialization.partition in remaining:
                remaining.discard(materialization.partition)
                materializations[materialization.partition] = _read_materialization(materialization)
        if not page.has_more:
            break
        cursor = page.cursor
    return [materializations[partition] for partition in sorted(materializations)]


def _read_materialization(event: dg.AssetMaterialization) -> Materialization:
    texts = {name: entry.value for name, entry in event.metadata.items()}
    return Materialization(
        partition=event.partition, metadata={name: value for name, value in texts.items() if isinstance(value, str)}
    )


def build_asset(
    spec: ArtifactSpec,
    tags: Mapping[str, str] = MappingProxyType({}),
    freshness: dg.FreshnessPolicy | None = None,
    automation: str = "",
) -> dg.AssetsDefinition:
    """Return the asset of an artifact with its freshness policy; `tags` extend its declaration's tags.

    `automation` describes the sensors and schedules of its dataset.
    """

    @dg.asset(**_build_asset_arguments(spec, tags, automation), freshness_policy=freshness)
    def artifact(context: dg.AssetExecutionContext, storage: StorageResource) -> Any:
        hold_run_lock_until_exit(context)
        store = spec.declaration.store(storage)
        _tag_run(context.instance, context.run)
        with private_files(spec.declaration.sensitive), convert_errors(spec, store):
            step_build = StepBuild(context, spec, store)
            slots = context.partition_keys if spec.partitions is not None else [None]
            decisions = decide_checks(spec, store, slots)
            failed = {slot for slot, decision in decisions.items() if decision.action is Action.BUILD}
            yield from step_build.build(slots, rebuild=failed)
        yield build_step_result()

    return artifact


def _tag_run(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """Tag a run with its dataset, because runs that a user or a backfill launches do not have this tag."""
    datasets = {key.path[0] for key in run.asset_selection or ()}
    if DATASET not in run.tags and len(datasets) == 1:
        instance.add_run_tags(run.run_id, {DATASET: datasets.pop()})


def _describe_automation(definitions: dg.Definitions) -> str:
    """Return a list of sensors and schedules in Markdown; empty if there are none.

    Dagster's page of an asset lists only automation of asset jobs, and would say that there is none.
    """
    lines = [
        f"- [{automation.name}](/automation): {automation.description}"
        for automation in (*(definitions.sensors or ()), *(definitions.schedules or ()))
        if isinstance(automation, dg.SensorDefinition | dg.ScheduleDefinition)
    ]
    return "\n".join(["Automation:", "", *lines]) if lines else ""


def _describe_asset(spec: ArtifactSpec, automation: str) -> str:
    """Return the description on the asset's page; its first line has no Markdown, because the catalog shows it."""
    dataset = spec.declaration.dataset
    first_line = re.sub(r"<([\w-]+)>", lambda match: match[1].upper(), spec.description.replace("`", ""))
    job = (
        f"The job [{job_name(dataset)}](/guess/{job_name(dataset)}) builds and checks all of {dataset} in one run. "
        '"Materialize all" launches one run per step of the graph, about half a minute apart.'
    )
    return "\n\n".join(filter(None, (first_line, spec.declaration.description, job, automation)))


def _build_asset_arguments(spec: ArtifactSpec, tags: Mapping[str, str], automation: str) -> dict[str, Any]:
    """Return the arguments of `dg.asset`."""
    declaration = spec.declaration
    arguments: dict[str, Any] = {
        "key": asset_key(spec),
        "deps": [asset_key(source) for source in spec.inputs],
        "group_name": declaration.dataset,
        "kinds": set(spec.kinds),
        "owners": list(declaration.owners),
        "description": _describe_asset(spec, automation),
        "tags": {**tags, **({SENSITIVE: "true"} if declaration.sensitive else {})},
        "metadata": {
            **build_definition_metadata(spec),
            **({io_manager.STORAGE: declaration.storage} if declaration.storage else {}),
            **({io_manager.PRIVATE: True} if declaration.sensitive else {}),
            **build_plan_metadata(spec),
        },
        "code_version": str(spec.version),
        "io_manager_key": io_manager.KEY,
    }
    if spec.pool is not None:
        arguments["pool"] = POOLS[spec.pool]
    if spec.partitions is not None:
        arguments["partitions_def"] = build_partitions_definition(spec.partitions)
        arguments["backfill_policy"] = dg.BackfillPolicy.multi_run(SHARDS_PER_RUN)
    return arguments


# Scaffold of `dg scaffold defs dataprep_assets.components.<Component> <name>`: a commented declaration.
#
# Each package stores its text next to its component in `<component>.scaffold.yaml`, with `__name__` for the dataset.


class DeclarationScaffolder(dg.Scaffolder[Any]):
    """Scaffolder that writes a commented `defs.yaml`."""

    template: ClassVar[Path]

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        target = Path(request.target_path)
        target.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^A-Za-z0-9_]", "_", target.name)
        text = self.template.read_text(encoding="utf-8").replace("__name__", name)
        (target / "defs.yaml").write_text(text, encoding="utf-8")


def build_scaffolder(template: Path) -> type[DeclarationScaffolder]:
    """Return a scaffolder class that writes the text of `template`."""
    return type(
        "DeclarationScaffolder", (DeclarationScaffolder,), {"template": template, "__doc__": "Writes a defs.yaml."}
    )


D = TypeVar("D", bound=DatasetDeclaration)
# Use the environment's instance by default, because processes that Dagster starts open no project.
use_own_instance()


class _WrittenAttributes(BaseModel):
    """Attributes of a component, exactly as the YAML has them."""

    attributes: Any


@cache
def _derive_unvalidated_model(model: type[D]) -> type[D]:
    """Return a variant of the model with the same schema that accepts every attribute without validating it.

    Dagster validates attributes with a component's model before it loads the component. Its error messages would differ
    from the project's, and a validated value may differ from the written one (`./x` becomes `x`). Therefore
    `DatasetComponent.load`, which knows the file, validates the attributes.
    """

    def keep_unvalidated(value: Any, handler: Callable[[Any], Any]) -> Any:
        return _WrittenAttributes(attributes=value)

    validators: dict[str, Any] = {"keep_unvalidated": model_validator(mode="wrap")(cast("Any", keep_unvalidated))}
    derived = create_model(
        model.__name__, __base__=model, __module__=model.__module__, __doc__=model.__doc__, __validators__=validators
    )
    # Compile the model, because Dagster would otherwise compile it again for each dataset.
    derived.model_rebuild()
    return derived


def build_definitions(specs: Sequence[ArtifactSpec], tags: Mapping[str, str] = MappingProxyType({})) -> dg.Definitions:
    """Return the assets, checks and job of a dataset, with its declared automation.

    Args:
        specs: All artifacts of the dataset, inputs before the artifacts that are built from them.
        tags: Tags of the assets, in addition to the declaration's tags.
    """
    job = build_job(specs)
    product_specs, policy = find_products(specs), build_policy(specs[0].declaration.automation)
    automation = build_automation(specs, job)
    text = _describe_automation(automation)
    definitions = dg.Definitions(
        assets=[build_asset(spec, tags, policy if spec in product_specs else None, text) for spec in specs],
        asset_checks=[build_checks(spec) for spec in specs if spec.checks],
        jobs=[job],
    )
    return dg.Definitions.merge(definitions, automation)


def build_dataset_definitions(dataset: Dataset) -> dg.Definitions:
    """Return the assets, checks, job and automation of a declared dataset, even if the dataset is hidden."""
    kind = _find_kind(dataset)
    return build_definitions(
        dataset.specs, {"dataprep/pipeline": dataset.pipeline, **({} if kind is None else {SHOWN_AS: kind})}
    )


def _find_kind(dataset: Dataset) -> str | None:
    return None if dataset.folder is None else find_shipped_kind(dataset.folder)


class DatasetComponent(Dataset, dg.Component):
    """Dataset as a Dagster component; the base class of the components in `dataprep_assets.components`."""

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        return _derive_unvalidated_model(cls.model)

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        if attributes is None:
            raise ConfigError(
                f"{context.path / 'defs.yaml'}: `attributes` is missing. Add it, or run `dg scaffold defs` for a "
                "commented example"
            )
        raw_attributes = cast("_WrittenAttributes", attributes).attributes
        yaml_path = Path(context.path) / "defs.yaml"
        scope = context.resolution_context.scope
        component = cls.from_attributes(
            render_templates(raw_attributes, scope, yaml_path, cls.list_own_templates(raw_attributes)), yaml_path
        )
        if component.declaration.automation is not None:
            check_crons(component.declaration.automation, yaml_path)
        return component

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the dataset's definitions for the code location; empty for a shipped dataset that is hidden."""
        if self.declaration.sensitive:
            disable_core_dumps()  # disable them now, because a run in this process later reads texts and keys
        return build_dataset_definitions(self) if is_shown(_find_kind(self)) else dg.Definitions()
