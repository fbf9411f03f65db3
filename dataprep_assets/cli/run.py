"""`dataprep run`: materialize datasets, or some shards of one."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from dataprep_assets.cli import project
from dataprep_assets.cli.arguments import AsJson, LockFile, Names, Options
from dataprep_assets.cli.check import require_sound
from dataprep_assets.cli.lock import LockedRuns, lock_of
from dataprep_assets.cli.part import Part
from dataprep_assets.cli.status import tell
from dataprep_assets.errors import ConfigError

if TYPE_CHECKING:
    import dagster as dg

    from dataprep_assets.graph.dataset import Dataset
    from dataprep_assets.graph.lock import Lock

__all__ = ["command"]


def command(
    datasets: Names,
    split: Annotated[
        str | None, typer.Option(help="Only the shards of this split; a plain `run` combines them later.")
    ] = None,
    shards: Annotated[
        str | None,
        typer.Option(metavar="FIRST...LAST", help="Only these partitions, for example train-00000...train-00099."),
    ] = None,
    months: Annotated[
        str | None, typer.Option(metavar="FIRST...LAST", help="The same for notes: 1998-01...2009-12.")
    ] = None,
    process_count: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Cut the partitions into this many even parts …")
    ] = None,
    process_index: Annotated[
        int | None, typer.Option(min=0, metavar="I", help="… and do this one, counted from 0: one process per node.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be built, why, and what it costs; writes nothing.")
    ] = False,
    json_: AsJson = False,
    locked: Annotated[
        bool, typer.Option("--locked", help="Build what dataset.lock beside the defs.yaml says, and nothing else.")
    ] = False,
    lock: LockFile = None,
) -> int:
    """Make datasets, from their sources to their last views, with all checks."""
    part = Part(split=split, bounds=months or shards, count=process_count, index=process_index)
    locks = locked or lock is not None
    if json_ and not dry_run:
        raise ConfigError("--json: needs --dry-run")
    if months and shards:
        raise ConfigError("--months and --shards mean the same: give one of them")
    if part.is_some and (dry_run or locks):
        raise ConfigError(f"{'--dry-run' if dry_run else '--locked'}: applies to whole datasets; leave out {part}")
    if len(datasets) > 1 and (part.is_some or lock is not None):
        raise ConfigError(f"{part if part.is_some else '--lock'}: applies to one dataset; name only one")
    if dry_run:
        return max(tell(name, as_json=json_) for name in datasets)
    if part.is_some:
        return _run_part(datasets[0], part)
    codes = [_run(name, lock_of(name, lock) if locks else None) for name in datasets]
    if 0 in codes:
        print(project.in_the_browser())
    return max(codes)


def _run(name: str, lock: "Lock | None") -> int:
    from dataprep_assets.graph.status import sweep
    from dataprep_assets.orchestration.needed import up_to_date
    from dataprep_assets.orchestration.summary import summary

    component = project.component(name)
    require_sound(name, component)
    specs, store = component.specs, component.store(project.storage())
    locked = None if lock is None else LockedRuns(lock, specs, store)
    if locked is not None:
        locked.before()
    with project.recorded() as recorded:
        if recorded is not None and up_to_date(specs, store, recorded):
            sweep(specs, store)
            print(f"{name}: all is up to date, nothing to do")
            print(summary(component, recorded, store))
            if locked is not None:
                locked.after()
            return 0
    return _make(name, component, locked)


def _make(name: str, component: "Dataset", locked: LockedRuns | None) -> int:
    """Make what is to be made of a dataset, in Dagster runs."""
    from dataprep_assets.graph.runs import planned_runs
    from dataprep_assets.orchestration.instance_records import InstanceRecords
    from dataprep_assets.orchestration.needed import narrowed
    from dataprep_assets.orchestration.runs import materialize
    from dataprep_assets.orchestration.summary import summary
    from dataprep_assets.orchestration.terminal import watched

    specs, store = component.specs, component.store(project.storage())
    started = time.monotonic()
    with project.instance() as instance, watched(sys.stderr):
        recorded = InstanceRecords(instance)
        print(f"{name}:")
        runs = planned_runs(specs, store)
        todo = narrowed(runs, specs, store, recorded) if locked is None else locked.each(runs)
        ok = materialize(_job(component), todo, instance, verbose=Options.verbose)
        if ok:
            print(summary(component, recorded, store, time.monotonic() - started))
            if locked is not None:
                locked.after()
        else:
            for line in component.standing(store):
                print(project.shown(line))
    return 0 if ok else 1


def _job(component: "Dataset") -> "dg.JobDefinition":
    """Dagster's implicit job of all assets of a dataset."""
    from dataprep_assets.code_location import bound
    from dataprep_assets.orchestration.component import definitions_of_dataset

    definitions = bound(definitions_of_dataset(component), project.current().root)
    return definitions.resolve_implicit_global_asset_job_def()


def _run_part(name: str, part: Part) -> int:
    """Make the chosen partitions of a dataset, but none of its unpartitioned artifacts."""
    from dataprep_assets.orchestration.partitions import register_planned
    from dataprep_assets.orchestration.runs import materialize
    from dataprep_assets.orchestration.terminal import watched

    component = project.component(name)
    require_sound(name, component)
    store = component.store(project.storage())
    runs = list(part.runs(component.specs, store))
    if not runs:
        print(f"{name}: nothing in this part: there are fewer partitions than processes")
        return 0
    print(f"{name}:")
    with project.instance() as instance, watched(sys.stderr):
        # another node may have made the plan, recorded in its own instance
        register_planned(instance, (spec for run in runs for spec in run.specs), store)
        return 0 if materialize(_job(component), runs, instance, verbose=Options.verbose) else 1
