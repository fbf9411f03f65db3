"""`dataprep sync`: copy a dataset, a release or any prefix between two locations, and compare digests."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import AsJson, Profile, Select
from dataprep_assets.errors import ConfigError, TransferError, count_of

if TYPE_CHECKING:
    from dataprep_assets.stores.connect import StoreAddress


def command(
    source: Annotated[str, typer.Argument(help="s3://bucket/prefix, gs://bucket/prefix or a folder.")],
    destination: Annotated[
        str, typer.Argument(help="Destination: s3://bucket/prefix, gs://bucket/prefix or a folder.")
    ],
    prefix: Annotated[str, typer.Option(help="Copy only keys with this prefix, below both locations.")] = "",
    select: Select = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be copied, and any problems in the source.")
    ] = False,
    private: Annotated[
        bool,
        typer.Option("--private", help="Make copied files readable only by you (0700/0600)."),
    ] = False,
    source_profile: Profile = None,
    dest_profile: Profile = None,
    json_: AsJson = False,
) -> int:
    """Copy a dataset, a release or any prefix between two locations, and verify digests."""
    from dataprep_assets.stores.files import private_files

    source_place, destination_place = (
        project.open_store(source, source_profile),
        project.open_store(destination, dest_profile),
    )
    with private_files(private or _is_closed(source_place)):
        output = _Output(as_json=json_)
        # each copy has a separate folder, from which it resumes after being killed
        identity = hashlib.sha256(f"{source_place} {destination_place} {prefix}".encode()).hexdigest()[:16]
        work = project.work_folder() / "sync" / identity
        with nullcontext() if dry_run else _lock_alone(work, destination_place):
            _sync(source_place, destination_place, prefix, tuple(select or ()), output, work, dry_run=dry_run)
    if json_:
        print(
            json.dumps(
                {"source": source_place.url, "destination": destination_place.url, "copied": not dry_run, **output.plan}
            )
        )
    return 0


class _Output:
    """Output of a copy: printed lines or, with `as_json`, only the `plan` as one JSON object."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json, self.plan = as_json, dict[str, Any]()

    def __call__(self, line: str) -> None:
        if not self._as_json:
            print(line, flush=True)


def _is_closed(place: "StoreAddress") -> bool:
    """Return whether a place is a private folder, or contains a private dataset."""
    from dataprep_assets.stores.connect import LocalPlace
    from dataprep_assets.stores.files import OTHERS

    if not isinstance(place, LocalPlace) or not place.root.is_dir():
        return False
    datasets = (entry for entry in place.root.iterdir() if not entry.name.startswith("."))
    return any(not folder.stat().st_mode & OTHERS for folder in (place.root, *datasets) if folder.is_dir())


@contextmanager
def _lock_alone(work: Path, here: "StoreAddress") -> Iterator[None]:
    """Lock this folder, because two concurrent copies would mistake each other's files for their own.

    Raises TransferError if another command is copying in it.
    """
    from dataprep_assets.stores.locks import own_file, try_lock

    work.parent.mkdir(parents=True, exist_ok=True)
    # The lock file is next to the folder, which is removed at the end. It is never removed itself, because two commands
    # could then hold the lock.
    with open(work.with_suffix(".lock"), "ab", opener=own_file) as lock:
        if not try_lock(lock, required=False):
            raise TransferError(
                f"{here.url}: another `dataprep sync` is copying to this location. Run again when it has finished"
            )
        yield


def _sync(
    there: "StoreAddress",
    here: "StoreAddress",
    prefix: str,
    select: tuple[str, ...],
    say: _Output,
    work: Path,
    *,
    dry_run: bool,
) -> None:
    from dataprep_assets.integrity.receipt import NAME
    from dataprep_assets.integrity.sync import MANIFEST, Sync, SyncItem
    from dataprep_assets.serving.window.release import MANIFEST as RELEASE
    from dataprep_assets.stores.connect import consumer_lines, server_between

    # a release is copied by its manifest, which lists all of its files; with globs it is copied like other files
    if not select and there().head(f"{prefix}{RELEASE}") is not None:
        _sync_release(there, here, prefix, work, say, dry_run=dry_run)
        return
    if there().head(NAME) is not None:
        raise ConfigError(
            f"{there.url}: cannot copy a single artifact, because the manifest is written next to it. Copy its parent "
            "folder with --select 'NAME/**'"
        )
    copying = Sync(
        source=there(),
        destination=here(),
        work=work,
        prefix=prefix,
        select=select,
        server=server_between(there, here),
    )
    plan = copying.plan()
    say.plan = {"bytes": plan.bytes, "on_server": plan.on_server, "notes": list(plan.findings)}
    say.plan["objects"] = [asdict(item) for item in plan.items]
    for finding in plan.findings:
        say(f"note: {finding}")
    for item in plan.items if dry_run else ():
        say(f"{item.action:<8}{item.bytes:>18,} B  {item.key} ({item.why})")
    how = "on the server" if plan.on_server else "through this machine"
    size = f"{count_of(plan.bytes, 'byte')}, about {count_of(plan.requests, 'request')}, {how}"
    say(f"{count_of(len(plan.items), 'object')}, {len(plan.todo)} to copy: {size}")
    if dry_run:
        return
    if not plan.items:
        raise ConfigError(f"{there.url}: nothing to copy. Check the prefix and --select")

    def show(item: SyncItem) -> None:
        say(f"copied {item.bytes:>18,} B  {item.key}")

    copying.run(plan, show)
    say(f"Copy complete, digests match: {here.url}/{MANIFEST}")
    for line in consumer_lines(here):
        say(line)


def _sync_release(
    source: "StoreAddress", destination: "StoreAddress", prefix: str, scratch: Path, say: _Output, *, dry_run: bool
) -> None:
    """Copy a release: compare every file with the manifest, and copy the manifest last."""
    from dataprep_assets.pipelines.release.migration import migrate, plan_migration
    from dataprep_assets.pipelines.release.published import consumer_code, consumer_environment
    from dataprep_assets.serving.window import release

    source_release, destination_release = (
        release.ReleaseLocation(address(), prefix) for address in (source, destination)
    )
    plan = plan_migration(source_release, destination_release)
    todo = {file.key for file in plan.todo}
    say.plan = {"bytes": plan.bytes, "on_server": False, "release": plan.release.digest, "notes": []}
    say.plan["objects"] = [
        {"key": file.key, "bytes": file.bytes, "sha256": file.sha256, "action": "copy" if file.key in todo else "skip"}
        for file in plan.release.files
    ]
    for line in plan.lines:
        say(line)
    if dry_run:
        return
    migrate(plan, source_release, destination_release, scratch)
    say(f"Copy complete, digests match: {destination_release}/{release.MANIFEST}")
    for line in [*consumer_environment(destination), consumer_code(destination_release)]:
        say(line)
