"""`dataprep schedule`: show what a training run reads, and write its next revision."""

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
            help="Apply the current declaration from step N, the first step that is not trained yet or that will be "
            "trained again from a checkpoint.",
        ),
    ] = None,
    trained: Annotated[
        int | None,
        typer.Option(
            metavar="M", help="With --from-step: set the number of steps already trained, if it is greater than N."
        ),
    ] = None,
    until: Annotated[int | None, typer.Option(metavar="N", help="Show only steps before N.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --from-step: show the revision. Writes nothing.")
    ] = False,
    json_: AsJson = False,
) -> int:
    """Show which data a training run reads. --from-step revises the schedule from the given step."""
    from dataprep_assets.pipelines.schedule.dataset import ScheduleDataset
    from dataprep_assets.pipelines.schedule.schedule_artifact import (
        load_current_schedule,
        revise_schedule,
        write_revisions,
    )
    from dataprep_assets.pipelines.schedule.schedule_sources import find_sources
    from dataprep_assets.serving.sampler.changes import describe_changes, describe_revisions
    from dataprep_assets.serving.sampler.sampler import Sampler
    from dataprep_assets.serving.sampler.simulation import format_simulation, simulate_reads

    component = project.use_dataset(dataset)
    if not isinstance(component, ScheduleDataset):
        raise ConfigError(
            f"{dataset} is a {component.component}, which has no training steps. Name a TrainingSchedule that reads it"
        )
    declaration, store = component.declaration, component.store(project.open_storage())
    # Load the sources, because a private source makes this command's output private.
    for source in declaration.sources:
        if source.dataset in project.load_declarations().files:
            project.use_dataset(source.dataset)
    if from_step is None and (trained is not None or dry_run):
        raise ConfigError("--trained and --dry-run need --from-step N. Add --from-step, or remove the others")
    schedule = load_current_schedule(declaration, store)
    if from_step is not None:
        schedule = revise_schedule(declaration, store, schedule, from_step=from_step, trained=trained)
    sampler = Sampler(schedule, find_sources(declaration, store)[1].packs)
    number = len(schedule.revisions) - 1
    path = None if from_step is None or dry_run else write_revisions(declaration, schedule)
    if json_:
        privacy = project.get_privacy()
        value = {
            "schedule": schedule.name,
            "digest": schedule.digest,
            "steps": sampler.end,
            "revisions": [
                {"first_step": item.first_step, "trained": item.trained, "changes": describe_changes(schedule, index)}
                for index, item in enumerate(schedule.revisions)
            ],
            "sources": [
                privacy.public_amounts(asdict(item))
                for item in simulate_reads(sampler, sampler.end if until is None else until)
            ],
            "pending": [
                privacy.public_text(item.sentence, "a change is not in the schedule yet")
                for item in component.find_changes(store)
            ],
            "written": None if path is None else str(path),
        }
        print(json.dumps(value, ensure_ascii=False))
        return 0
    project.print_unless_private(
        [*describe_revisions(schedule), *format_simulation(sampler, until)], f"{dataset}: scheduled reads"
    )
    if path is not None:
        print(
            f"Wrote revision {number}, which begins at step {from_step}, to {path}. Run `dataprep run {dataset}` to "
            "build it"
        )
    elif from_step is not None:
        print(f"Dry run: revision {number}, which would begin at step {from_step}, was not written")
    else:
        project.print_unless_private(component.describe_state(store), f"{dataset}: changes are not in the schedule yet")
    return 0
