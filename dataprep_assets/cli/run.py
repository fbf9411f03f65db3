"""`dataprep run`: build datasets, or a part of one."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dataprep_assets.cli.lock import LockListener, read_dataset_lock
from dataprep_assets.cli.status import print_rebuild
from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import LockFile, NamesOrAll, Options, Splits, print_error_line
from dataprep_assets.engine.privacy import load_privacy
from dataprep_assets.errors import ConfigError, DataprepError, NotFoundError, count_of
from dataprep_assets.library.part import PartitionSelection, parse_split_names
from dataprep_assets.screen import (
    LAYOUT_COLUMNS,
    MAX_LINES,
    Section,
    count_rows,
    print_error,
    print_lines,
    read_width,
    shorten_paths,
    shorten_sections,
    show_waiting,
    stop_waiting,
)

if TYPE_CHECKING:
    from dataprep_assets.cli.support.steps import StepPrinter
    from dataprep_assets.engine.artifact.spec import ArtifactSpec
    from dataprep_assets.engine.lock.lock import Lock
    from dataprep_assets.integrity.artifacts import ArtifactStore
    from dataprep_assets.library.dataset import OpenDataset
    from dataprep_assets.orchestration.build import BuildListener
    from dataprep_assets.orchestration.runs.runs import RunResult


def command(
    datasets: NamesOrAll = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Build all datasets of the project, except the included samples.")
    ] = False,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="ARTIFACT", help="Build only this artifact, e.g., documents, and the artifacts it is built from."
        ),
    ] = None,
    split: Splits = None,
    shards: Annotated[
        str | None,
        typer.Option(metavar="FIRST...LAST", help="Build only these partitions, e.g., train-00000...train-00099."),
    ] = None,
    months: Annotated[
        str | None,
        typer.Option(metavar="FIRST...LAST", help="Build only these months of notes, e.g., 1998-01...2009-12."),
    ] = None,
    process_count: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Divide the partitions into N parts, e.g., one per node.")
    ] = None,
    process_index: Annotated[
        int | None, typer.Option(min=0, metavar="I", help="Build only part I of --process-count, counted from 0.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which artifacts would be built, why, and the cost. Writes nothing.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="With --dry-run: print JSON Lines instead of text.")] = False,
    locked: Annotated[
        bool,
        typer.Option(
            "--locked", help="Build exactly the dataset that the dataset.lock next to the defs.yaml describes."
        ),
    ] = False,
    lock: LockFile = None,
) -> int:
    """Build datasets and run all checks."""
    datasets = _choose_names(datasets or [], all_=all_)
    part = PartitionSelection(
        until=until,
        splits=parse_split_names(split),
        bounds=months or shards,
        option="--months" if months else "--shards",
        count=process_count,
        index=process_index,
    )
    locks = locked or lock is not None
    if json_ and not dry_run:
        raise ConfigError(
            f"--json needs --dry-run. Add --dry-run, or run `dataprep show {datasets[0]} --json` after the run for "
            "artifacts, losses and checks"
        )
    if months and shards:
        raise ConfigError("--months cannot be combined with --shards. Remove one of them")
    if dry_run and part.limits_partitions:
        raise ConfigError(f"--dry-run applies only to whole datasets. Remove {replace(part, until=None)}")
    if locks and part.is_limited:
        raise ConfigError(f"{'--locked' if locked else '--lock'} applies only to whole datasets. Remove {part}")
    if len(datasets) > 1 and (part.is_limited or lock is not None):
        raise ConfigError(f"{part if part.is_limited else '--lock'} applies to a single dataset. Name exactly one")
    if dry_run:
        return max(_print_dry_run(name, until, as_json=json_) for name in datasets)
    if part.is_limited:
        return _run_part(datasets[0], part)
    # Load all datasets before the first build, so that a mistake in any declaration is reported before anything is
    # built.
    current_project = project.current_project()
    # Open an existing instance only once for all datasets. The first build opens a new one.
    with current_project.instance() if len(datasets) > 1 and current_project.home.exists() else nullcontext():
        return _run_all(
            [(dataset, read_dataset_lock(dataset.name, lock) if locks else None) for dataset in _open_sound(datasets)]
        )


def _run_all(sound: Sequence[tuple["OpenDataset", "Lock | None"]]) -> int:
    """Build datasets, each with its lock if it has one; skip datasets whose inputs failed."""
    codes, start_time = dict[str, int](), Options.began
    for dataset, lock_ in sound:
        failed_inputs = [name for name in _find_input_datasets(dataset) if codes.get(name)]
        if failed_inputs:
            was = "was" if len(failed_inputs) == 1 else "were"
            print_error(f"{dataset.name}: not built, because {' and '.join(failed_inputs)} {was} not built")
        # A skipped dataset gets the exit code of its first failed input, because this input is the cause.
        codes[dataset.name] = (
            codes[failed_inputs[0]]
            if failed_inputs
            else _run_dataset(dataset, lock_, start_time, is_only=len(sound) == 1)
        )
        start_time = time.monotonic()
    unfinished_names = [name for name, code in codes.items() if code]
    if not unfinished_names:
        print_lines([project.describe_browser_command()])
    elif len(codes) > 1:
        print_lines(["", f"next: correct the cause, then run `dataprep run {' '.join(unfinished_names)}` again"])
    return max(codes.values())


def _choose_names(names: list[str], *, all_: bool) -> list[str]:
    """Return the names of the datasets to build, inputs first; raise ConfigError if there is none."""
    if names and all_:
        raise ConfigError("--all cannot be combined with dataset names. Remove one of them")
    if names:
        return names
    kinds = project.list_kinds()
    dataset_names = [name for name, kind in kinds.items() if kind is None]
    if not all_:
        if not (dataset_names or kinds):
            raise ConfigError("no datasets are declared yet. Run `dataprep init --help`")
        known_names = ", ".join(dataset_names or kinds)
        raise ConfigError(f"name a dataset, or pass --all. Available: {known_names}")
    if not dataset_names:
        raise ConfigError(
            "--all: this project declares only the shipped samples. Name one of them, or declare a dataset"
        )
    inputs_by_dataset = {name: _find_input_datasets(project.current_project().dataset(name)) for name in dataset_names}
    try:
        return [name for name in TopologicalSorter(inputs_by_dataset).static_order() if name in inputs_by_dataset]
    except CycleError as error:
        raise ConfigError(f"--all: circular inputs: {' ← '.join(error.args[1])}. Remove one of these inputs") from None


def _find_input_datasets(dataset: "OpenDataset") -> list[str]:
    """Return the other datasets from which a dataset is built."""
    from dataprep_assets.engine.artifact.spec import DatasetInput

    inputs = (source for spec in dataset.specs for source in spec.inputs)
    return list(dict.fromkeys(source.dataset for source in inputs if isinstance(source, DatasetInput)))


def _open_sound(names: Sequence[str], *, is_whole: bool = True) -> list["OpenDataset"]:
    """Open datasets without mistakes, and print hints on standard error.

    Raises ConfigError with the mistakes of all datasets.
    """
    datasets, mistakes = list["OpenDataset"](), list[str]()
    for name in names:
        if not Options.quiet:
            show_waiting(f"{name}: checking the declaration…")
        dataset = project.current_project().dataset(name)
        try:
            hints = dataset.require_sound(is_whole=is_whole)
        except ConfigError as error:
            mistakes.append(str(error))
            continue
        for hint in hints:
            print_error(f"note: {hint}")
        datasets.append(dataset)
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return datasets


def _print_dry_run(name: str, until: str | None, *, as_json: bool) -> int:
    """Print the artifacts that a run would build, up to `until`, and the documents that the filter rules would drop.

    Return the exit code of `status`.
    """
    stop_waiting()
    code = print_rebuild(name, as_json=as_json, until=until)
    dataset = project.open_dataset(name)
    if as_json or not dataset.component.has_rules:
        return code
    with suppress(DataprepError):  # before the first run, there is no shard plan
        drops = dataset.component.documents(dataset.store).drops()
        if drops is not None and drops.documents:
            print(f"{name}: documents dropped by the filter rules")
            print("\n".join(drops.lines(load_privacy(dataset.component.declaration, dataset.store))))
    return code


def _run_dataset(dataset: "OpenDataset", lock: "Lock | None", start_time: float, *, is_only: bool) -> int:
    """Build a dataset and print the result.

    Args:
        dataset: The dataset to build.
        lock: The lock to compare the dataset with; None for no comparison.
        start_time: Start of the command, or end of the previous dataset, in seconds of `time.monotonic`.
        is_only: Whether the command builds only this dataset. If so, the suggested next command is printed.
    """
    from dataprep_assets.cli.support.steps import StepPrinter
    from dataprep_assets.engine.artifact.summary import (
        build_sections,
        describe_end,
        describe_up_to_date,
        read_current_counts,
    )
    from dataprep_assets.engine.staleness.status import remove_leftovers

    if not Options.quiet:
        show_waiting(f"{dataset.name}: looking for changes…")

    component = project.apply_privacy(dataset.component)
    specs, store = dataset.specs, dataset.store
    locked = None if lock is None else LockListener(lock, specs, store)
    if locked is not None:
        locked.begin()
    started, counts_before = time.monotonic(), read_current_counts(component, store)
    if dataset.up_to_date():
        # Remove leftovers here as well, because only the end of a build removes them, and a build that is killed after
        # it publishes may leave its staging folder behind.
        remove_leftovers(specs, store)
        print_lines(list(describe_up_to_date(component, store, read_width(sys.stdout))))
    else:
        print_lines([f"{dataset.name}:"])
        steps = StepPrinter(specs)
        listeners: list[BuildListener] = [steps, *([locked] if locked is not None else [])]
        with _open_terminal_output():
            result = dataset.build(listeners=listeners, verbose=Options.verbose, start_time=start_time)
            steps.end()
        if result.ended:
            if locked is not None and locked.drift is not None:
                _print_failures(dataset, result)
                raise locked.drift
            _end_failed_run(dataset, result, steps)
            if is_only:
                _print_next(dataset, result)
            return int(result.ended)
        if Options.quiet:  # without `--quiet`, the list of checks already includes the warnings
            _print_warnings(result)
        width = read_width(sys.stdout)
        losses = describe_end(component, store, counts_before, width or LAYOUT_COLUMNS)
        _print_sections(
            dataset.name,
            build_sections(
                component,
                store,
                losses=losses,
                seconds=time.monotonic() - started,
                width=width or LAYOUT_COLUMNS,
            ),
            width,
            # Leave room for the command that opens the browser, which is printed after all datasets are built.
            max_rows=MAX_LINES - count_rows(project.describe_browser_command(), width),
        )
    if locked is not None:
        locked.end()
    return 0


def _print_sections(name: str, sections: Sequence[Section], width: int | None, *, max_rows: int) -> None:
    """Print sections, each after an empty line, in at most `max_rows` rows of a terminal, with relative paths."""
    from dataprep_assets.engine.artifact.summary import TRAINERS

    root = project.current_project().root
    short_sections = list[Section]()
    for section in sections:
        lines, end = ([shorten_paths(line, root) for line in part] for part in (section.lines, section.end))
        # State which folder the paths are relative to, because the trainer usually starts in a different folder.
        if lines[:1] == [TRAINERS] and lines != section.lines:
            lines[0] = f"{TRAINERS.removesuffix(':')} (paths relative to {Path.cwd()}):"
        short_sections.append(Section(lines=lines, end=end))
    for lines in shorten_sections(short_sections, f"dataprep show {name}", width=width, max_rows=max_rows):
        if lines:
            print_lines(["", *lines])


@contextmanager
def _open_terminal_output() -> Iterator[None]:
    from dataprep_assets.orchestration.runs.terminal import show_progress, show_step, write_printed_lines

    with write_printed_lines(sys.stdout), nullcontext() if Options.quiet else show_progress(sys.stderr):
        show_step("starting…")
        yield


def _print_warnings(result: "RunResult") -> None:
    for check in dict.fromkeys(result.checks):
        if check not in result.failed_checks:
            print_error_line(f"  {check}")


def _print_failures(dataset: "OpenDataset", result: "RunResult") -> None:
    """Print each failure once: failed steps with their reasons, and failed blocking checks."""
    # Print failed blocking checks together with failed steps, because both end the run with an error.
    for line in dict.fromkeys([*dataset.list_complaints(result), *result.failed_checks]):
        print_error(f"  {line}")


def _end_failed_run(dataset: "OpenDataset", result: "RunResult", steps: "StepPrinter") -> None:
    """Print the end of a failed run: the failures, the kept steps and their losses."""
    from dataprep_assets.engine.artifact.summary import describe_failed_end

    name, component, store = dataset.name, dataset.component, dataset.store
    print_lines(["", f"{name}: failed"])
    _print_failures(dataset, result)
    _print_warnings(result)
    width = read_width(sys.stdout)
    current_partitions = _find_current_partitions(steps, store)
    kept_count, failed_count = len(current_partitions.keys() - steps.failed_specs), len(steps.failed_specs)
    rest_count = len(dataset.specs) - kept_count - failed_count
    lines = [
        f"built and kept: {kept_count:,} of {count_of(len(dataset.specs), 'step')}; {failed_count:,} failed, "
        f"{rest_count:,} not built",
        *describe_failed_end(component, store, current_partitions, width or LAYOUT_COLUMNS),
    ]
    _print_sections(name, [Section(lines=lines)], width, max_rows=MAX_LINES // 2)
    project.print_unless_private(component.describe_state(store), f"{name}: more details")


def _print_next(dataset: "OpenDataset", result: "RunResult", part: str = "") -> None:
    """Print the next command after a failed run, as the last line; `part` has the options that select its part."""
    cause = "the cause"
    if result.ended == result.ended.MISCONFIGURED:
        declaration = str(project.find_declaration(dataset.name))
        cause = shorten_paths(declaration, project.current_project().root)
    print_lines(["", f"next: correct {cause}, then run `dataprep run {dataset.name}{part}` again"])


def _find_current_partitions(
    steps: "StepPrinter", store: "ArtifactStore"
) -> "dict[ArtifactSpec, Sequence[str | None]]":
    """Return the partitions that a failed run built or found up to date. A failed check does not exclude any."""
    from dataprep_assets.engine.staleness.decide import CHECK_FAILED
    from dataprep_assets.engine.staleness.status import decide_slots

    current_partitions = dict(steps.partitions)
    for spec in steps.failed_specs & current_partitions.keys():
        with suppress(DataprepError):
            decided = decide_slots(spec, store, current_partitions[spec])
            current_partitions[spec] = [
                slot
                for slot in current_partitions[spec]
                if not decided[slot].is_stale or decided[slot].kind == CHECK_FAILED
            ]
    return current_partitions


def _run_part(name: str, part: PartitionSelection) -> int:
    """Build the selected artifacts and partitions of a dataset and everything they depend on."""
    from dataprep_assets.cli.support.steps import StepPrinter
    from dataprep_assets.engine.artifact.summary import count_checks, describe_end

    (dataset,) = _open_sound([name], is_whole=not part.limits_partitions)
    project.apply_privacy(dataset.component)
    specs = part.select_specs(dataset.specs)
    if part.limits_partitions:
        part.list_partitioned_specs(specs)
    print_lines([f"{name}:"])
    steps = StepPrinter(specs)
    try:
        with _open_terminal_output():
            result = dataset.build_part(part, listeners=[steps], verbose=Options.verbose)
    except NotFoundError as nothing:
        print_lines([str(nothing)])
        return 0
    if result.ended:
        _end_failed_run(dataset, result, steps)
        _print_next(dataset, result, part.arguments)
        return int(result.ended)
    _print_warnings(result)
    width = read_width(sys.stdout)
    # Count all finished partitions of the dataset, not only the partitions of this part. Pass None to list no changes
    # since the last complete run, because the dataset may still be incomplete.
    losses = describe_end(dataset.component, dataset.store, None, width or LAYOUT_COLUMNS)
    section = replace(losses, end=[*losses.end, count_checks(dataset.component, dataset.store)])
    _print_sections(name, [section], width, max_rows=MAX_LINES - 1)
    is_shown = not dataset.component.declaration.sensitive
    has_table = is_shown and any("table" in spec.kinds for spec in specs if spec.name == part.until)
    reading = f"run `dataprep documents {name}` to look at the rows, then " if has_table else "run "
    print_lines([f"next: {reading}`dataprep run {name}` to build the rest"])
    return 0
