"""`dataprep run`: materialize datasets, or some shards of one."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from dataprep_assets.cli import project
from dataprep_assets.cli.status import tell
from dataprep_assets.errors import ConfigError

__all__ = ["chosen", "declare"]


def declare(commands: project.Commands) -> None:
    """Add the command's arguments."""
    parser = commands.add_parser("run", help="materialize a dataset from source to views, with its checks")
    parser.add_argument("dataset", nargs="+", help="dataset names, as in defs/<name>/defs.yaml")
    parser.add_argument(
        "--split", help="only mirror and tokenize shards of this split; combine later with a plain `run`"
    )
    parser.add_argument(
        "--shards",
        metavar="FIRST...LAST",
        help="with --split: a range of shards, for example train-00000...train-00099",
    )
    parser.add_argument("--process-count", type=int, help="with --split: cut its shards into this many even parts …")
    parser.add_argument("--process-index", type=int, help="… and do this one (from 0): one process a node")
    parser.add_argument(
        "--dry-run", action="store_true", help="only say what would be built, why, and what it costs; writes nothing"
    )
    parser.add_argument("--json", action="store_true", help="with --dry-run: one JSON object a dataset, each on a line")
    parser.add_argument(
        "--locked",
        nargs="?",
        const="",
        metavar="FILE",
        help="build what the lock says and nothing else (default: dataset.lock beside the defs.yaml)",
    )
    parser.set_defaults(execute=_execute)


def _execute(options: argparse.Namespace) -> int:
    if options.dry_run:
        if options.split:
            raise ConfigError("--dry-run: is told of a whole dataset, leave --split out")
        return max(tell(name, as_json=options.json) for name in options.dataset)
    if options.json:
        raise ConfigError("--json: only with --dry-run")
    if options.split:
        if options.locked is not None:
            raise ConfigError("--locked: goes with the run of a whole dataset, not with --split")
        (name,) = options.dataset
        return _run_shards(name, options)
    if options.locked and len(options.dataset) > 1:
        raise ConfigError(f"--locked {options.locked}: is of one dataset; name one")
    return max(_run(name, options.locked) for name in options.dataset)


def _run(name: str, lock: str | None) -> int:
    from dataprep_assets.cli.lock import LockedRuns, lock_of
    from dataprep_assets.definitions import datasets
    from dataprep_assets.graph.runs import planned_runs
    from dataprep_assets.graph.status import stale, sweep
    from dataprep_assets.orchestration.assets import asset_key
    from dataprep_assets.orchestration.runs import failed_checks, materialize, summary
    from dataprep_assets.orchestration.terminal import watched

    component = project.component(name)
    specs, store = component.specs, component.store(project.storage())
    started = time.monotonic()
    locked = None if lock is None else LockedRuns(lock_of(name, Path(lock) if lock else None), specs, store)
    if locked is not None:
        locked.before()
    with project.instance() as instance, watched(sys.stderr):
        known = instance.get_latest_materialization_event(asset_key(specs[0])) is not None
        if known and next(stale(specs, store), None) is None and not failed_checks(specs, instance, never_ran=True):
            sweep(specs, store)
            product = component.product(store)
            print(f"{name}: all is up to date, nothing to do. {product}: {store.location(product)}")
            if locked is not None:
                locked.after()
            return 0
        print(f"{name}:")
        runs = planned_runs(specs, store)
        ok = materialize(datasets(), runs if locked is None else locked.each(runs), instance)
        if ok:
            print(summary(component, instance, store, time.monotonic() - started))
            if locked is not None:
                locked.after()
    return 0 if ok else 1


def _run_shards(name: str, options: argparse.Namespace) -> int:
    from dataprep_assets.definitions import datasets
    from dataprep_assets.graph.runs import PlannedRun, planned_runs
    from dataprep_assets.orchestration.runs import materialize
    from dataprep_assets.orchestration.terminal import watched

    component = project.component(name)
    splits = [spec.split for spec in component.specs if spec.split is not None and spec.partitions is not None]
    if not splits:
        raise ConfigError(f"--split: {name} is a {type(component).__name__}, whose shards are not chosen by split")
    if options.split not in splits:
        raise ConfigError(f"--split {options.split}: {name} has {list(dict.fromkeys(splits))}")
    store = component.store(project.storage())
    members = [s for s in component.specs if s.split == options.split and s.partitions is not None]
    assert members[0].partitions is not None
    shards = chosen(
        members[0].partitions.keys(store),
        bounds=options.shards,
        count=options.process_count,
        index=options.process_index,
    )
    if not shards:
        print(f"{name}: no shards in this part: {options.split} has fewer shards than there are processes")
        return 0
    (planned,) = planned_runs(members, store)
    title = members[0].step.title(store, planned.partitions, shards)
    print(f"{name}:")
    with project.instance() as instance, watched(sys.stderr):
        run = PlannedRun(title=title, specs=members, partitions=shards)
        return 0 if materialize(datasets(), [run], instance) else 1


def chosen(every: Sequence[str], *, bounds: str | None, count: int | None, index: int | None) -> Sequence[str]:
    """Some consecutive partitions of all.

    Args:
        every: All partitions, in order.
        bounds: `FIRST...LAST`, or one name; goes before `count`.
        count: Into how many even parts to cut them; None takes all.
        index: Which of the parts, from 0.

    Raises ConfigError for names that are not among them and for an index outside the count.
    """
    if bounds is not None:
        first, _, last = bounds.partition("...")
        last = last or first
        if first not in every or last not in every or every.index(first) > every.index(last):
            raise ConfigError(f"--shards {bounds}: give FIRST...LAST among {every[0]}...{every[-1]}")
        return every[every.index(first) : every.index(last) + 1]
    if count is None:
        return every
    if index is None or not 0 <= index < count:
        raise ConfigError(f"--process-index {index}: must be at least 0 and below --process-count {count}")
    return every[len(every) * index // count : len(every) * (index + 1) // count]
