"""The `dataprep` command: run a dataset, tell its cost or status, verify offline, try a store, copy between stores.

`run` materializes through Dagster into the instance of DAGSTER_HOME, so that everything it did is visible in the UI;
the other commands use no instance.
"""

import argparse
import fcntl
import hashlib
import logging
import os
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep_assets.errors import ConfigError, DataprepError

if TYPE_CHECKING:
    import dagster as dg

    from dataprep_assets.integrity.receipt import Verification
    from dataprep_assets.orchestration.component import DatasetComponent
    from dataprep_assets.stores.connect import Place
    from resources import StorageResource


PROJECT_ROOT = Path(__file__).resolve().parents[2]


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run one command; errors of this project are printed, not traced."""
    parser = argparse.ArgumentParser(prog="dataprep", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="materialize a dataset from source to views, with its checks")
    run.add_argument("dataset", nargs="+", help="dataset names, as in defs/<name>/defs.yaml")
    run.add_argument("--split", help="only mirror and tokenize shards of this split; combine later with a plain `run`")
    run.add_argument(
        "--shards",
        metavar="FIRST...LAST",
        help="with --split: a range of shards, for example train-00000...train-00099",
    )
    run.add_argument("--process-count", type=int, help="with --split: cut its shards into this many even parts …")
    run.add_argument("--process-index", type=int, help="… and do this one (from 0): one process a node")
    plan = commands.add_parser("plan", help="say what a dataset will cost: shards, runs, hours, disk, requests")
    plan.add_argument("dataset")
    plan.add_argument("--cores", type=int, help="of all machines (default: those that this process may use)")
    plan.add_argument(
        "--bandwidth", type=float, default=125e6, help="bytes a second to source and bucket (default: 125e6, 1 Gbit/s)"
    )
    plan.add_argument("--runs-at-a-time", type=int, default=1, help="batches beside each other (default: 1)")
    status = commands.add_parser("status", help="say what of a dataset is missing, damaged or out of date")
    status.add_argument("dataset", nargs="+")
    verify = commands.add_parser("verify", help="check artifacts against their receipts, offline")
    verify.add_argument(
        "path", nargs="?", help="artifact, dataset or storage root: a folder or a URL (default: the whole storage)"
    )
    verify.add_argument("--size-only", action="store_true", help="compare sizes, not digests")
    check = commands.add_parser("preflight", help="try everything that a store must be able to do")
    check.add_argument(
        "url", nargs="?", help="s3://bucket/prefix, gs://bucket/prefix or a folder (default: as for run)"
    )
    check.add_argument("--profile", help="a profile of boto3's configuration, with credentials and endpoint")
    sync = commands.add_parser("sync", help="copy a dataset, or any prefix, between two places, digests compared")
    sync.add_argument("source", help="s3://bucket/prefix, gs://bucket/prefix or a folder")
    sync.add_argument("destination")
    sync.add_argument("--prefix", default="", help="only keys that begin with this, below both places")
    sync.add_argument("--select", nargs="+", default=[], metavar="GLOB", help="only keys that match one of these")
    sync.add_argument("--dry-run", action="store_true", help="say what would be done, and what is odd in the source")
    sync.add_argument("--source-profile", help="a profile of boto3's configuration for the source")
    sync.add_argument("--dest-profile", help="… and one for the destination")
    options = parser.parse_args(arguments)
    try:
        if options.command == "verify":
            return _verify(options.path, "size" if options.size_only else "full")
        if options.command == "preflight":
            return _preflight(options.url, options.profile)
        if options.command == "sync":
            return _sync(options)
        if options.command == "plan":
            return _plan(options)
        if options.command == "status":
            return max(_status(name) for name in options.dataset)
        if options.split:
            (name,) = options.dataset
            return _run_shards(name, options)
        return max(_run(name) for name in options.dataset)
    except DataprepError as error:
        print(f"dataprep: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndataprep: interrupted; what was finished is kept, run the same command again", file=sys.stderr)
        return 130


def _storage() -> "StorageResource":
    from resources import open_storage

    return open_storage(PROJECT_ROOT)


def _place(url: str | None, profile: str | None = None) -> "Place":
    """The named place, or the storage of the environment."""
    from dataprep_assets.stores.connect import place_of

    return _storage().place() if url is None else place_of(url, os.environ, profile=profile)


def _definitions() -> "dg.Definitions":
    from dataprep_assets.definitions import datasets

    return datasets()


def _component(name: str) -> "DatasetComponent":
    import dagster as dg

    from dataprep_assets.orchestration.component import DatasetComponent

    folder = Path(__file__).parents[1] / "defs"
    known = sorted(path.parent.relative_to(folder).as_posix() for path in folder.rglob("defs.yaml"))
    if name not in known:
        raise ConfigError(f"{name!r} is not a dataset here; defs/ has {known}")
    component = dg.ComponentTree.for_project(PROJECT_ROOT).load_component(Path(name))
    if not isinstance(component, DatasetComponent):
        raise ConfigError(f"{name!r} is a {type(component).__name__}, which `dataprep` cannot run; use `dg launch`")
    return component


def _verify(path: str | None, verification: "Verification") -> int:
    from dataprep_assets.integrity.verify import verify, verify_store
    from dataprep_assets.stores.connect import LocalPlace

    place = _place(path)
    if isinstance(place, LocalPlace):
        if not place.root.exists():
            raise ConfigError(f"{place.root}: nothing there to verify")
        verdicts = verify(place.root, verification)
    else:
        verdicts = verify_store(place(), verification)
    count = total = bad = 0
    for verdict in verdicts:
        count += 1
        total += verdict.bytes
        bad += bool(verdict.defects)
        for defect in verdict.defects:
            print(f"DAMAGED {verdict.name}: {defect}")
    print(f"{count} artifacts, {total:,} bytes: {'all as their receipts say' if not bad else f'{bad} damaged'}")
    return 1 if bad or not count else 0


def _preflight(url: str | None, profile: str | None) -> int:
    from dataprep_assets.stores.preflight import preflight

    place = _place(url, profile)
    print(f"{place.url}:")
    failed = 0
    for step in preflight(place()):
        failed += not step.ok
        print(f"  {'ok     ' if step.ok else 'FAILED ' if step.tried else 'skipped'} {step.name}", flush=True)
        if step.error:
            print(f"          {step.error}")
    print("ready" if not failed else f"not ready: {failed} of these failed or could not be tried")
    return 1 if failed else 0


def _sync(options: argparse.Namespace) -> int:
    from dataprep_assets.integrity.sync import MANIFEST, Item, Sync
    from dataprep_assets.serving.release import MANIFEST as RELEASE
    from dataprep_assets.stores.connect import consumer_lines, server_between

    source, destination = (
        _place(options.source, options.source_profile),
        _place(options.destination, options.dest_profile),
    )
    identity = hashlib.sha256(f"{source} {destination} {options.prefix}".encode()).hexdigest()[:16]
    cache = Path(_storage().cache or PROJECT_ROOT / ".dataprep" / "cache")
    if not options.select and source().head(f"{options.prefix}{RELEASE}") is not None:
        return _sync_release(options, source, destination, cache / "sync" / identity)
    sync = Sync(
        source=source(),
        destination=destination(),
        work=cache / "sync" / identity,
        prefix=options.prefix,
        select=tuple(options.select),
        server=server_between(source, destination),
    )
    plan = sync.plan()
    for finding in plan.findings:
        print(f"note: {finding}")
    for item in plan.items if options.dry_run else ():
        print(f"{item.action:<8}{item.bytes:>18,} B  {item.key} ({item.why})")
    how = "on the server" if plan.on_server else "through this machine"
    print(f"{len(plan.items)} objects, {len(plan.todo)} to copy: {plan.bytes:,} bytes, ", end="")
    print(f"about {plan.requests:,} requests, {how}")
    if options.dry_run:
        return 0
    if not plan.items:
        raise ConfigError(f"{source.url}: nothing there to copy; check the prefix and --select")

    def show(item: Item) -> None:
        print(f"copied {item.bytes:>18,} B  {item.key}", flush=True)

    sync.run(plan, show)
    print(f"all there, digests compared: {destination.url}/{MANIFEST}")
    for line in consumer_lines(destination):
        print(line)
    return 0


def _sync_release(options: argparse.Namespace, source: "Place", destination: "Place", scratch: Path) -> int:
    """A release is copied by its manifest: every file compared with it, the manifest last."""
    from dataprep_assets.pipelines.release.migration import migrate, plan_migration
    from dataprep_assets.pipelines.release.published import consumer_code, consumer_environment
    from dataprep_assets.serving import release

    there, here = (release.Place(place(), options.prefix) for place in (source, destination))
    plan = plan_migration(there, here)
    for line in plan.lines:
        print(line)
    if options.dry_run:
        return 0
    migrate(plan, there, here, scratch)
    print(f"all there, digests compared: {here}/{release.MANIFEST}")
    for line in [*consumer_environment(destination), consumer_code(here)]:
        print(line)
    return 0


def _plan(options: argparse.Namespace) -> int:
    from dataprep_assets.cli.estimate import estimate
    from dataprep_assets.planning.cost import Machine, table

    component = _component(options.dataset)
    cores = len(os.sched_getaffinity(0)) if options.cores is None else options.cores
    machine = Machine(cores=cores, bandwidth=options.bandwidth, runs_at_a_time=options.runs_at_a_time)
    found = estimate(component.declaration, component.assets.store(_storage()), machine)
    print(table(options.dataset, found.cost, machine))
    print(
        f"rates          {f'measured on {found.measured:,} finished shards' if found.measured else 'of the bench'}; "
        "the cost is of all, from nothing"
    )
    return 0


def _status(name: str) -> int:
    component = _component(name)
    behind = list(component.stale(component.assets.store(_storage())))
    for artifact in behind:
        print(f"stale: {artifact}")
    if not behind:
        print(f"{name}: all is up to date")
    return 1 if behind else 0


def _instance() -> "dg.DagsterInstance":
    """The instance of DAGSTER_HOME; by default one inside the project, made on first use."""
    import dagster as dg

    from dataprep_assets.orchestration.dataset import LIVE

    logging.getLogger("dagster").setLevel(logging.ERROR)
    warnings.simplefilter("ignore", dg.BetaWarning)
    if sys.stderr.isatty():
        os.environ[LIVE] = "1"
    home = Path(os.environ.setdefault("DAGSTER_HOME", str(PROJECT_ROOT / ".dagster")))
    home.mkdir(parents=True, exist_ok=True)
    # two commands that make the databases of a new home at once would trip over each other's tables
    with open(home / ".dataprep.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "dagster.yaml").exists():
            (home / "dagster.yaml").write_text((PROJECT_ROOT / "deploy" / "local" / "dagster.yaml").read_text())
        instance = dg.DagsterInstance.get()
        instance.all_asset_keys()  # the event log makes its tables when it is first asked
        return instance


def _run(name: str) -> int:
    from dataprep_assets.orchestration.runs import blocked_by, materialize, summary

    component = _component(name)
    store = component.assets.store(_storage())
    started = time.monotonic()
    with _instance() as instance:
        first = next(component.steps(store)).keys[0]
        known = instance.get_latest_materialization_event(first) is not None
        if known and not list(component.stale(store)) and not blocked_by(component, instance):
            component.sweep(store)
            product = component.declaration.artifact(*component.product)
            print(f"{name}: all is up to date, nothing to do. {product}: {store.location(product)}")
            return 0
        definitions = _definitions()
        print(f"{name}:")
        ok = materialize(definitions, component.steps(store), instance)
        if ok:
            print(summary(component, definitions, instance, store, time.monotonic() - started))
    return 0 if ok else 1


def _run_shards(name: str, options: argparse.Namespace) -> int:
    from dataprep_assets.components import TokenizedCorpus
    from dataprep_assets.orchestration.runs import materialize

    component = _component(name)
    if not isinstance(component, TokenizedCorpus):
        raise ConfigError(f"--split: {name} is a {type(component).__name__}, whose shards are not chosen by split")
    store = component.assets.store(_storage())
    shards = component.chosen_shards(
        store, options.split, bounds=options.shards, count=options.process_count, index=options.process_index
    )
    if not shards:
        print(f"{name}: no shards in this part: {options.split} has fewer shards than there are processes")
        return 0
    print(f"{name}:")
    with _instance() as instance:
        return 0 if materialize(_definitions(), [component.shard_range(options.split, shards)], instance) else 1
