"""`dataprep sync`: copy a dataset, a release or any prefix between two places, comparing digests."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dataprep_assets.cli import project
from dataprep_assets.cli.arguments import Profile, Select
from dataprep_assets.errors import ConfigError

if TYPE_CHECKING:
    from dataprep_assets.stores.connect import Place


def command(
    source: Annotated[str, typer.Argument(help="s3://bucket/prefix, gs://bucket/prefix or a folder.")],
    destination: Annotated[str, typer.Argument(help="The same, where it is copied to.")],
    prefix: Annotated[str, typer.Option(help="Only keys that begin with this, below both locations.")] = "",
    select: Select = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and what is odd in the source.")
    ] = False,
    private: Annotated[
        bool,
        typer.Option("--private", help="Copies in a folder are their owner's alone, as those of such a folder are."),
    ] = False,
    source_profile: Profile = None,
    dest_profile: Profile = None,
) -> int:
    """Copy a dataset, a release or any prefix between two places, comparing digests."""
    from dataprep_assets.stores.private import private_files

    there, here = project.place(source, source_profile), project.place(destination, dest_profile)
    with private_files(private or _is_closed(there)):
        return _sync(there, here, prefix, tuple(select or ()), dry_run=dry_run)


def _is_closed(place: "Place") -> bool:
    """Whether the place is a folder that only its owner can read, or contains a dataset that is."""
    from dataprep_assets.stores.connect import LocalPlace
    from dataprep_assets.stores.private import OTHERS

    if not isinstance(place, LocalPlace) or not place.root.is_dir():
        return False
    datasets = (entry for entry in place.root.iterdir() if not entry.name.startswith("."))
    return any(not folder.stat().st_mode & OTHERS for folder in (place.root, *datasets) if folder.is_dir())


def _sync(there: "Place", here: "Place", prefix: str, select: tuple[str, ...], *, dry_run: bool) -> int:
    from dataprep_assets.integrity.sync import MANIFEST, Item, Sync
    from dataprep_assets.serving.release import MANIFEST as RELEASE
    from dataprep_assets.stores.connect import consumer_lines, server_between

    identity = hashlib.sha256(f"{there} {here} {prefix}".encode()).hexdigest()[:16]
    work = project.work_folder() / "sync" / identity
    if not select and there().head(f"{prefix}{RELEASE}") is not None:
        return _sync_release(there, here, prefix, work, dry_run=dry_run)
    copying = Sync(
        source=there(),
        destination=here(),
        work=work,
        prefix=prefix,
        select=select,
        server=server_between(there, here),
    )
    plan = copying.plan()
    for finding in plan.findings:
        print(f"note: {finding}")
    for item in plan.items if dry_run else ():
        print(f"{item.action:<8}{item.bytes:>18,} B  {item.key} ({item.why})")
    how = "on the server" if plan.on_server else "through this machine"
    print(f"{len(plan.items)} objects, {len(plan.todo)} to copy: {plan.bytes:,} bytes, ", end="")
    print(f"about {plan.requests:,} requests, {how}")
    if dry_run:
        return 0
    if not plan.items:
        raise ConfigError(f"{there.url}: nothing there to copy; check the prefix and --select")

    def show(item: Item) -> None:
        print(f"copied {item.bytes:>18,} B  {item.key}", flush=True)

    copying.run(plan, show)
    print(f"all there, digests compared: {here.url}/{MANIFEST}")
    for line in consumer_lines(here):
        print(line)
    return 0


def _sync_release(source: "Place", destination: "Place", prefix: str, scratch: Path, *, dry_run: bool) -> int:
    """Copy a release by its manifest: every file is compared with it, and the manifest is copied last."""
    from dataprep_assets.pipelines.release.migration import migrate, plan_migration
    from dataprep_assets.pipelines.release.published import consumer_code, consumer_environment
    from dataprep_assets.serving import release

    there, here = (release.Place(place(), prefix) for place in (source, destination))
    plan = plan_migration(there, here)
    for line in plan.lines:
        print(line)
    if dry_run:
        return 0
    migrate(plan, there, here, scratch)
    print(f"all there, digests compared: {here}/{release.MANIFEST}")
    for line in [*consumer_environment(destination), consumer_code(here)]:
        print(line)
    return 0
