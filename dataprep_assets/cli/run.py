"""`dataprep run`: materialize datasets, or some shards of one."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Annotated

import typer

from dataprep_assets.cli.lock import LockedBuild, lock_of
from dataprep_assets.cli.status import tell
from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import AsJson, LockFile, NamesOrAll, Options, Splits, tell_wrong
from dataprep_assets.engine.privacy import privacy_of
from dataprep_assets.errors import ConfigError, DataprepError, NotFoundError
from dataprep_assets.library.part import PartitionSelection, split_names

if TYPE_CHECKING:
    from dataprep_assets.engine.lock.lock import Lock
    from dataprep_assets.library.dataset import OpenDataset
    from dataprep_assets.orchestration.build import BuildListener
    from dataprep_assets.orchestration.runs.runs import RunResult


def command(
    datasets: NamesOrAll = None,
    all_: Annotated[
        bool, typer.Option("--all", help="All datasets of the project, except the shipped samples.")
    ] = False,
    split: Splits = None,
    shards: Annotated[
        str | None,
        typer.Option(metavar="FIRST...LAST", help="Build only these partitions, e.g. train-00000...train-00099."),
    ] = None,
    months: Annotated[
        str | None,
        typer.Option(metavar="FIRST...LAST", help="Build only these months of notes, e.g. 1998-01...2009-12."),
    ] = None,
    process_count: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Split the partitions into N parts, e.g. one per node.")
    ] = None,
    process_index: Annotated[
        int | None, typer.Option(min=0, metavar="I", help="Build part I of --process-count, counted from 0.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be built, why, and the cost; write nothing.")
    ] = False,
    json_: AsJson = False,
    locked: Annotated[
        bool, typer.Option("--locked", help="Build exactly what the dataset.lock next to the defs.yaml describes.")
    ] = False,
    lock: LockFile = None,
) -> int:
    """Build datasets and run all checks."""
    datasets = _choose_names(datasets or [], all_=all_)
    part = PartitionSelection(
        splits=split_names(split),
        bounds=months or shards,
        option="--months" if months else "--shards",
        count=process_count,
        index=process_index,
    )
    locks = locked or lock is not None
    if json_ and not dry_run:
        raise ConfigError(
            f"--json: needs --dry-run. After the run use `dataprep show {datasets[0]} --json` for artifacts, losses "
            "and checks"
        )
    if months and shards:
        raise ConfigError("--months cannot be combined with --shards. Remove one of them")
    if part.is_some and (dry_run or locks):
        raise ConfigError(f"{'--dry-run' if dry_run else '--locked'}: applies to whole datasets. Remove {part}")
    if len(datasets) > 1 and (part.is_some or lock is not None):
        raise ConfigError(f"{part if part.is_some else '--lock'}: applies to one dataset. Name only one")
    if dry_run:
        return max(_print_dry_run(name, as_json=json_) for name in datasets)
    if part.is_some:
        return _run_part(datasets[0], part)
    # all are loaded first, so that an error in the last one is not found after hours of building the others
    return _run_all([(dataset, lock_of(dataset.name, lock) if locks else None) for dataset in _open_sound(datasets)])


def _run_all(sound: Sequence[tuple["OpenDataset", "Lock | None"]]) -> int:
    """Build datasets, each with its lock if it has one; skip datasets whose inputs failed."""
    codes, began = dict[str, int](), Options.began
    for dataset, lock_ in sound:
        failed = [of for of in _input_datasets(dataset) if codes.get(of)]
        if failed:
            print(
                f"{dataset.name}: not built, because its input {' and '.join(failed)} was not built",
                file=sys.stderr,
            )
        # a skipped dataset ends with the exit code of its failed input
        codes[dataset.name] = codes[failed[0]] if failed else _run(dataset, lock_, began)
        began = time.monotonic()
    if 0 in codes.values():
        print(project.browser_line())
    return max(codes.values())


def _choose_names(names: list[str], *, all_: bool) -> list[str]:
    """Return the names of the datasets to build, inputs first; raise ConfigError if there is none."""
    if names and all_:
        raise ConfigError("--all: cannot be combined with dataset names. Remove one of them")
    if names:
        return names
    kinds = project.kinds()
    own = [name for name, kind in kinds.items() if kind is None]
    if not all_:
        known = ", ".join(own or kinds) or "none yet: `dataprep init --help`"
        raise ConfigError(f"name a dataset, or pass --all. Available: {known}")
    if not own:
        raise ConfigError("--all: this project declares no dataset except the shipped samples")
    made_of = {name: _input_datasets(project.current_project().dataset(name)) for name in own}
    try:
        return [name for name in TopologicalSorter(made_of).static_order() if name in made_of]
    except CycleError as error:
        raise ConfigError(f"--all: {' is built from '.join(error.args[1])}. Remove one of these inputs") from None


def _input_datasets(dataset: "OpenDataset") -> list[str]:
    """Return the other datasets from which a dataset is built."""
    from dataprep_assets.engine.artifact.spec import DatasetInput

    inputs = (source for spec in dataset.specs for source in spec.inputs)
    return list(dict.fromkeys(source.dataset for source in inputs if isinstance(source, DatasetInput)))


def _open_sound(names: Sequence[str], *, whole: bool = True) -> list["OpenDataset"]:
    """Open datasets without mistakes, and print hints on standard error.

    Raises ConfigError with the mistakes of all datasets.
    """
    datasets, wrong = list["OpenDataset"](), list[str]()
    for name in names:
        dataset = project.current_project().dataset(name)
        try:
            hints = dataset.require_sound(whole=whole)
        except ConfigError as error:
            wrong.append(str(error))
            continue
        for hint in hints:
            print(f"note: {hint}", file=sys.stderr)
        datasets.append(dataset)
    if wrong:
        raise ConfigError("\n".join(wrong))
    return datasets


def _print_dry_run(name: str, *, as_json: bool) -> int:
    """Print what a run would build and what the filter rules would drop; return the exit code of `status`."""
    code = tell(name, as_json=as_json)
    dataset = project.open_dataset(name)
    if as_json or not dataset.component.has_rules:
        return code
    with suppress(DataprepError):  # nothing is planned yet
        drops = dataset.component.documents(dataset.store).drops()
        if drops is not None and drops.documents:
            print(f"{name}: dropped documents")
            print("\n".join(drops.lines(privacy_of(dataset.component.declaration, dataset.store))))
    return code


def _run(dataset: "OpenDataset", lock: "Lock | None", began: float) -> int:
    """Build a dataset and print the result. `began` is the start of the command, or the end of the previous dataset."""
    from dataprep_assets.cli.support.steps import Steps
    from dataprep_assets.engine.artifact.summary import end_of_run, present_counts, summary, up_to_date
    from dataprep_assets.engine.staleness.status import sweep

    component = project.take(dataset.component)
    specs, store = dataset.specs, dataset.store
    locked = None if lock is None else LockedBuild(lock, specs, store)
    if locked is not None:
        locked.begin()
    started, before = time.monotonic(), present_counts(component, store)
    if dataset.up_to_date():
        # because a build killed right after publishing leaves its staging folder next to the current artifact
        sweep(specs, store)
        print("\n".join(up_to_date(component, store)))
    else:
        print(f"{dataset.name}:")
        steps = Steps(specs)
        attendants: list[BuildListener] = [steps, *([locked] if locked is not None else [])]
        with _attended():
            result = dataset.build(attendants=attendants, verbose=Options.verbose, began=began)
            steps.end()
        if code := _report_result(dataset, result):
            if locked is not None and locked.drift is not None:
                raise locked.drift
            project.tell(component.standing_lines(store), f"{dataset.name}: the previous run remains valid")
            return code
        losses = end_of_run(component, store, before)
        print(summary(component, store, losses=losses, seconds=time.monotonic() - started))
    if locked is not None:
        locked.end()
    return 0


@contextmanager
def _attended() -> Iterator[None]:
    from dataprep_assets.orchestration.runs.terminal import show_progress, write_said_lines

    with write_said_lines(sys.stdout), nullcontext() if Options.quiet else show_progress(sys.stderr):
        yield


def _report_result(dataset: "OpenDataset", result: "RunResult") -> int:
    """Print the failures, check results and losses of a run; return its exit code."""
    from dataprep_assets.engine.artifact.summary import end_of_failed_run

    for line in dataset.complaints(result):
        print(f"    {line}", file=sys.stderr)
    for check in result.checks:
        # a failed blocking check is an error, like a failed step
        if check in result.failed_checks:
            print(f"    {check}", file=sys.stderr)
        else:
            tell_wrong(f"    {check}")
    if result.ended:
        for line in end_of_failed_run(dataset.component, dataset.store):
            print(line)
    return result.ended


def _run_part(name: str, part: PartitionSelection) -> int:
    """Build the selected partitions of a dataset and everything they depend on."""
    from dataprep_assets.cli.support.steps import Steps
    from dataprep_assets.engine.artifact.summary import count_checks, end_of_run

    (dataset,) = _open_sound([name], whole=False)
    project.take(dataset.component)
    part.partitioned_specs(dataset.specs)
    print(f"{name}:")
    try:
        with _attended():
            result = dataset.build_part(part, attendants=[Steps(dataset.specs)], verbose=Options.verbose)
    except NotFoundError as nothing:
        print(nothing)
        return 0
    if code := _report_result(dataset, result):
        return code
    # includes finished partitions of other parts; a part is not compared with the last complete run
    for line in end_of_run(dataset.component, dataset.store, None):
        print(line)
    print(count_checks(dataset.component, dataset.store))
    print(f"next: run `dataprep run {name}` to build the rest")
    return 0
