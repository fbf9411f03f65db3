"""`dataprep sync`: copy a dataset, a release or any prefix between two places, digests compared."""

import argparse
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep_assets.cli import project
from dataprep_assets.errors import ConfigError

if TYPE_CHECKING:
    from dataprep_assets.stores.connect import Place

__all__ = ["declare"]


def declare(commands: project.Commands) -> None:
    """Add the command's arguments."""
    parser = commands.add_parser("sync", help="copy a dataset, or any prefix, between two places, digests compared")
    parser.add_argument("source", help="s3://bucket/prefix, gs://bucket/prefix or a folder")
    parser.add_argument("destination")
    parser.add_argument("--prefix", default="", help="only keys that begin with this, below both places")
    parser.add_argument("--select", nargs="+", default=[], metavar="GLOB", help="only keys that match one of these")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and what is odd in the source")
    parser.add_argument("--source-profile", help="a profile of boto3's configuration for the source")
    parser.add_argument("--dest-profile", help="… and one for the destination")
    parser.set_defaults(execute=_sync)


def _sync(options: argparse.Namespace) -> int:
    from dataprep_assets.integrity.sync import MANIFEST, Item, Sync
    from dataprep_assets.serving.release import MANIFEST as RELEASE
    from dataprep_assets.stores.connect import consumer_lines, server_between

    source, destination = (
        project.place(options.source, options.source_profile),
        project.place(options.destination, options.dest_profile),
    )
    identity = hashlib.sha256(f"{source} {destination} {options.prefix}".encode()).hexdigest()[:16]
    cache = Path(project.storage().cache or project.PROJECT_ROOT / ".dataprep" / "cache")
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
