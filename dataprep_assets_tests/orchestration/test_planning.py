"""A sensor plans each new declaration once, so that a build whose shards determine the rest can continue."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dataprep_assets.orchestration.partitions import DATASET
from dataprep_assets.orchestration.runs.planning import add_planning
from dataprep_assets.orchestration.sensors.automation import should_report_failure
from dataprep_assets.pipelines.corpus.component import TokenizedCorpus
from dataprep_assets.project import SHOWN_AS
from dataprep_assets.resources import create_resources
from dataprep_assets_tests.project import Project, project, sample_attributes


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Project]:
    with project(sample_attributes(), tmp_path) as found:
        yield found


def make_definitions(made: Project, **changes: Any) -> dg.Definitions:
    """Return the definitions of the project's corpus with the planning sensor, as a code location has them."""
    corpus = made.corpus.model_copy(update=changes)
    built = TokenizedCorpus(corpus).build_defs(None)  # type: ignore[arg-type]
    return add_planning(dg.Definitions.merge(built, dg.Definitions(resources=create_resources(made.storage))))


def tick(definitions: dg.Definitions, instance: dg.DagsterInstance, cursor: str | None = None) -> tuple[Any, Any]:
    """Return the requests of the sensor, and its cursor."""
    repository = definitions.get_repository_def()
    context = dg.build_sensor_context(instance, cursor=cursor, repository_def=repository)
    found = repository.get_sensor_def("plan_new_datasets").evaluate_tick(context)
    return found.run_requests or [], found.cursor


def test_a_new_declaration_is_planned_once_and_its_partitions_are_registered(made: Project) -> None:
    definitions = make_definitions(made)
    (request,), cursor = tick(definitions, made.instance)
    assert request.asset_selection == [made.key("manifest")]
    assert request.tags[DATASET] == "corpus"
    assert tick(definitions, made.instance, cursor)[0] == [], (
        "a planning run that failed, or is under way, is left alone"
    )
    assert made.run([made.key("manifest")]).success
    assert made.instance.get_dynamic_partitions("corpus_train_shards") == made.shards("train")
    assert tick(definitions, made.instance)[0] == []


def test_many_new_declarations_are_planned_by_one_run_and_an_invalid_one_does_not_block_others(made: Project) -> None:
    corpora = [made.corpus.model_copy(update={"dataset": name}) for name in ("first", "second", "third")]
    corpora[1] = corpora[1].model_copy(update={"splits": {"train": ["nothing/**"]}})
    built = [TokenizedCorpus(corpus).build_defs(None) for corpus in corpora]  # type: ignore[arg-type]
    definitions = add_planning(dg.Definitions.merge(*built, dg.Definitions(resources=create_resources(made.storage))))
    (request,), cursor = tick(definitions, made.instance)
    assert request.asset_selection == [dg.AssetKey([corpus.dataset, "manifest"]) for corpus in corpora]
    assert DATASET not in request.tags
    assert tick(definitions, made.instance, cursor)[0] == []
    job = definitions.resolve_implicit_global_asset_job_def()
    outcome = job.execute_in_process(
        asset_selection=request.asset_selection, instance=made.instance, raise_on_error=False
    )
    assert not outcome.success
    planned = [made.instance.get_dynamic_partitions(f"{corpus.dataset}_train_shards") for corpus in corpora]
    assert [bool(shards) for shards in planned] == [True, False, True]
    (run,) = made.instance.get_runs()
    assert [should_report_failure(made.instance, run, corpus.dataset) for corpus in corpora] == [False, True, False]
    assert tick(definitions, made.instance, cursor)[0] == [], "the one that failed is left to its owner"


def test_a_changed_declaration_is_planned_again_unless_only_texts_changed(made: Project) -> None:
    assert made.run([made.key("manifest")]).success
    assert tick(make_definitions(made, description="better words"), made.instance)[0] == []
    (again,), _ = tick(make_definitions(made, include=("**/*_1.jsonl.zst",)), made.instance)
    assert again.asset_selection == [made.key("manifest")]


def test_examples_that_need_a_network_are_not_planned(made: Project) -> None:
    shown = make_definitions(made).map_asset_specs(func=lambda spec: spec.merge_attributes(tags={SHOWN_AS: "example"}))
    assert [sensor.name for sensor in add_planning(dg.Definitions(assets=shown.assets)).sensors or ()] == [
        "end_lost_runs"
    ]
