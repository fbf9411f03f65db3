"""`dataprep run`: materialize datasets, or some shards of one."""

import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from dataprep_assets.cli import project
from dataprep_assets.cli.arguments import AsJson, LockFile, Names, Options
from dataprep_assets.cli.check import require_sound
from dataprep_assets.cli.lock import LockedBuild, lock_of
from dataprep_assets.cli.part import Part
from dataprep_assets.cli.status import tell
from dataprep_assets.errors import ConfigError, DataprepError
from dataprep_assets.graph.shown import number_of

if TYPE_CHECKING:
    from dataprep_assets.graph.dataset import Dataset
    from dataprep_assets.graph.lock import Lock
    from dataprep_assets.graph.spec import ArtifactSpec
    from dataprep_assets.integrity.artifacts import ArtifactStore
    from dataprep_assets.orchestration.build import Attendant


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
    part = Part(
        split=split,
        bounds=months or shards,
        option="--months" if months else "--shards",
        count=process_count,
        index=process_index,
    )
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
        return max(_foretell(name, as_json=json_) for name in datasets)
    if part.is_some:
        return _run_part(datasets[0], part)
    # all are loaded first: a mistake in the last of them is not found after hours of the others
    sound = [(_sound(name), lock_of(name, lock) if locks else None) for name in datasets]
    codes = [_run(*one) for one in sound]
    if 0 in codes:
        print(project.in_the_browser())
    return max(codes)


def _foretell(name: str, *, as_json: bool) -> int:
    """Print what a run would build and what the rules would drop; the exit code of `status`."""
    code = tell(name, as_json=as_json)
    component = project.loaded(name)
    if as_json or not component.has_rules:
        return code
    with suppress(DataprepError):  # nothing is planned yet
        drops = component.documents(component.store(project.storage())).drops()
        if drops is not None and drops.documents:
            print(f"{name}: what the rules drop of {number_of(drops.documents, 'document')}")
            for line in drops.lines():
                print(project.shown(line))
    return code


def _sound(name: str) -> "Dataset":
    component = project.loaded(name)
    require_sound(name, component)
    return component


class _Shown:
    """Attends to a build (`orchestration.build.Attendant`): prints what is being made."""

    def before(self, spec: "ArtifactSpec", partitions: Sequence[str], *, current: bool) -> None:
        if not current:
            count = f": {number_of(len(partitions), spec.noun)}" if partitions else ""
            print(f"  {spec.path[-1]}{count} …", flush=True)

    def after(self, spec: "ArtifactSpec", partitions: Sequence[str]) -> None:
        """Nothing: its checks are shown when they fail."""

    def told(self, sentence: str) -> None:
        print(sentence, flush=True)


def _run(component: "Dataset", lock: "Lock | None") -> int:
    from dataprep_assets.graph.status import sweep
    from dataprep_assets.graph.summary import summary

    name = project.take(component).declaration.dataset
    specs, store = component.specs, component.store(project.storage())
    locked = None if lock is None else LockedBuild(lock, specs, store)
    if locked is not None:
        locked.begin()
    started = time.monotonic()
    if _up_to_date(specs, store):
        sweep(specs, store)
        print(f"{name}: all is up to date, nothing to do")
        print(summary(component, store))
    else:
        print(f"{name}:")
        if code := _build(component, attendants=[locked] if locked is not None else []):
            if locked is not None and locked.drift is not None:
                raise locked.drift
            for line in component.standing(store):
                print(project.shown(line))
            return code
        print(summary(component, store, time.monotonic() - started))
    if locked is not None:
        locked.end()
    return 0


def _up_to_date(specs: "Sequence[ArtifactSpec]", store: "ArtifactStore") -> bool:
    """Whether every artifact is current by its receipt, proven, and recorded; Dagster is asked last."""
    from dataprep_assets.graph.prune import retracted_left
    from dataprep_assets.graph.standing import unproven
    from dataprep_assets.graph.status import never_built, stale

    if never_built(specs, store) or retracted_left(specs, store) or next(stale(specs, store), None) is not None:
        return False
    if any(unproven(spec, store, spec.slots(store)) for spec in specs):
        return False
    from dataprep_assets.orchestration.recorded import Recorded, unrecorded

    with project.instance() as instance:
        return not unrecorded(specs, store, Recorded(instance))


def _build(
    component: "Dataset",
    *,
    only: "Mapping[ArtifactSpec, Sequence[str]] | None" = None,
    attendants: "Sequence[Attendant]" = (),
    part: str = "",
) -> int:
    """Execute the dataset's job, or the part of it that makes `only` some partitions; return the exit code."""
    import dagster as dg

    from dataprep_assets.code_location import bound
    from dataprep_assets.orchestration.build import job_of
    from dataprep_assets.orchestration.keys import PART
    from dataprep_assets.orchestration.runs import execute
    from dataprep_assets.orchestration.terminal import watched

    job = job_of(component.specs, only=only, attendants=[_Shown(), *attendants])
    here = project.current()
    definitions = bound(dg.Definitions(jobs=[job]), here.root)
    with project.instance() as instance, watched(sys.stderr):
        tags = {PART: part} if part else {}
        whole, complain = definitions.resolve_job_def(job.name), partial(_complain, component)
        return execute(whole, instance, location=here.location, tags=tags, complain=complain, verbose=Options.verbose)


def _complain(component: "Dataset", where: str, why: str, misconfigured: bool) -> None:
    """Print why an artifact was not made; of a mistake in the declaration with the line of the first key it names."""
    from dataprep_assets.graph.declaration_mistakes import read

    path = project.declaration_of(component.declaration.dataset)
    keys = [first or quoted for first, quoted in re.findall(r"^([a-z_.]+):|`([a-z_.]+)[`:]", why)]
    for key in keys if misconfigured else []:
        if key.partition(".")[0] in type(component.declaration).model_fields:
            (document, *_) = read(path)
            where = f"{where}: {path}:{document.line_of(key.split('.'))}"
            break
    print(f"    {where}: {why}", file=sys.stderr)


def _run_part(name: str, part: Part) -> int:
    """Make the chosen partitions of a dataset, and before them what plans them and what they are made of."""
    from dataprep_assets.graph.order import ancestors

    component = project.take(_sound(name))
    specs, store = component.specs, component.store(project.storage())
    partitioned = part.partitioned(specs)
    print(f"{name}:")
    first = [spec for spec in ancestors(partitioned) if not ancestors([spec]) & set(partitioned)]
    if code := _build(component, only={spec: () for spec in specs if spec in first}, part=str(part)):
        return code
    only = part.chosen(specs, store)
    if not only:
        print(f"{name}: nothing in this part: there are fewer partitions than processes")
        return 0
    return _build(component, only=only, part=str(part))
