"""`dataprep schedule`: what a training run reads, and the next revision of it."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import AsJson, Name
from dataprep_assets.errors import ConfigError


def command(
    dataset: Name,
    from_step: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Make a revision of what is declared now: N is the first step that was not trained on yet, or that is "
            "trained on again from an earlier checkpoint.",
        ),
    ] = None,
    trained: Annotated[
        int | None,
        typer.Option(metavar="M", help="With --from-step: how many steps were trained on, if more than N."),
    ] = None,
    until: Annotated[int | None, typer.Option(metavar="N", help="Tell of the steps before N only.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --from-step: say what it would be, and write nothing.")
    ] = False,
    json_: AsJson = False,
) -> int:
    """Say what a training run reads until when, and change it from a step on."""
    from dataprep_assets.pipelines.schedule.dataset import ScheduleDataset
    from dataprep_assets.pipelines.schedule.schedule_artifact import present_schedule, revise_schedule, write_revisions
    from dataprep_assets.pipelines.schedule.schedule_sources import found_sources
    from dataprep_assets.serving.sampler.changes import changes_of, told_revisions
    from dataprep_assets.serving.sampler.sampler import Sampler
    from dataprep_assets.serving.sampler.simulation import simulated, told_lines

    component = project.component(dataset)
    if not isinstance(component, ScheduleDataset):
        raise ConfigError(f"{dataset} is a {component.component}, which has no steps; declare a TrainingSchedule of it")
    declaration, store = component.declaration, component.store(project.storage())
    # loaded for one reason: what leaves is then decided by the sources that are sensitive, too
    for source in declaration.sources:
        if source.dataset in project.declarations().files:
            project.component(source.dataset)
    if from_step is None and (trained is not None or dry_run):
        raise ConfigError("--trained and --dry-run belong to --from-step N")
    schedule = present_schedule(declaration, store)
    if from_step is not None:
        schedule = revise_schedule(declaration, store, schedule, from_step=from_step, trained=trained)
    sampler = Sampler(schedule, found_sources(declaration, store)[1].packs)
    number = len(schedule.revisions) - 1
    path = None if from_step is None or dry_run else write_revisions(declaration, schedule)
    if json_:
        privacy = project.privacy()
        value = {
            "schedule": schedule.name,
            "digest": schedule.digest,
            "steps": sampler.end,
            "revisions": [
                {"first_step": one.first_step, "trained": one.trained, "changes": changes_of(schedule, at)}
                for at, one in enumerate(schedule.revisions)
            ],
            "sources": [
                privacy.amounts(asdict(one)) for one in simulated(sampler, sampler.end if until is None else until)
            ],
            "pending": [privacy.text(one.sentence, "a source differs") for one in component.pending(store)],
            "written": None if path is None else str(path),
        }
        print(json.dumps(value, ensure_ascii=False))
        return 0
    project.tell([*told_revisions(schedule), *told_lines(sampler, until)], f"{dataset}: scheduled")
    if path is not None:
        print(f"revision {number} from step {from_step} is in {path}: `dataprep run {dataset}` makes it readable")
    elif from_step is not None:
        print(f"revision {number} from step {from_step}: nothing was written")
    else:
        project.tell(component.standing(store), f"{dataset}: a source differs")
    return 0
