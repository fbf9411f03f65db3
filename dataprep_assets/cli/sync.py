"""`dataprep sync`: copy a dataset, a release or any prefix between two locations, and compare digests."""

import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import AsJson, Options, Select
from dataprep_assets.errors import ConfigError, TransferError, count_of

_WIDEST = 36
"""Maximum width of a folder's name in columns, so that most lines take one row of a terminal."""

if TYPE_CHECKING:
    from dataprep_assets.execution.progress import Progress
    from dataprep_assets.integrity.sync import SyncItem, SyncPlan
    from dataprep_assets.stores.connect import StoreAddress


def command(
    source: Annotated[str, typer.Argument(help="Source: s3://bucket/prefix, gs://bucket/prefix or a folder.")],
    destination: Annotated[
        str, typer.Argument(help="Destination: s3://bucket/prefix, gs://bucket/prefix or a folder.")
    ],
    prefix: Annotated[str, typer.Option(help="Copy only keys with this prefix. The copies keep the prefix.")] = "",
    select: Select = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Show which files would be copied, and any problems in the source. Writes nothing."
        ),
    ] = False,
    private: Annotated[
        bool,
        typer.Option("--private", help="Make the copies readable only by you (folders 0700, files 0600)."),
    ] = False,
    source_profile: Annotated[
        str | None,
        typer.Option(metavar="PROFILE", help="Use the credentials and endpoint of this AWS profile for the source."),
    ] = None,
    dest_profile: Annotated[
        str | None,
        typer.Option(metavar="PROFILE", help="Use the credentials and endpoint of this AWS profile for the copy."),
    ] = None,
    json_: AsJson = False,
) -> int:
    """Copy a dataset, a release or any prefix from one location to another, and verify the digests."""
    from dataprep_assets.stores.files import private_files

    source_place, destination_place = (
        project.open_store(source, source_profile),
        project.open_store(destination, dest_profile),
    )
    _refuse_nested(source_place, destination_place, prefix)
    with private_files(private or _is_closed(source_place)):
        output = _Output(as_json=json_)
        # Name the work folder after the source, the destination and the prefix, so that the next command for the same
        # copy finds the folder and resumes a killed copy.
        identity = hashlib.sha256(f"{source_place} {destination_place} {prefix}".encode()).hexdigest()[:16]
        work = project.find_work_folder() / "sync" / identity
        with nullcontext() if dry_run else _lock_alone(work, destination_place):
            _sync(source_place, destination_place, prefix, tuple(select or ()), output, work, dry_run=dry_run)
    if json_:
        print(
            json.dumps(
                {"source": source_place.url, "destination": destination_place.url, "copied": not dry_run, **output.plan}
            )
        )
    return 0


def _refuse_nested(source: "StoreAddress", destination: "StoreAddress", prefix: str) -> None:
    """Raise ConfigError if a copy would write into its source, so that the next copy would also copy the copies."""
    from dataprep_assets.stores.connect import LocalAddress

    # Compare the other attributes as well, because buckets of two servers may have the same name.
    is_same_store = isinstance(source, LocalAddress) or (
        not isinstance(destination, LocalAddress) and replace(source, prefix="") == replace(destination, prefix="")
    )
    source_url, destination_url = f"{source.url.rstrip('/')}/", f"{destination.url.rstrip('/')}/"
    if is_same_store and (destination_url == source_url or destination_url.startswith(source_url + prefix)):
        raise ConfigError(f"sync: {destination.url} is {source.url} or inside it. Choose another destination")


class _Output:
    """Output of a copy: printed lines or, with `as_json`, only the `plan` as one JSON object."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json, self.plan = as_json, dict[str, Any]()

    def __call__(self, line: str) -> None:
        if not self.as_json:
            print(line, flush=True)

    @contextmanager
    def show_copying(self, total_bytes: int) -> Iterator["Progress"]:
        """Show the progress of a copy and the lines of `print_line`, as `run` does; show nothing with `as_json`."""
        from dataprep_assets.execution.progress import Progress
        from dataprep_assets.orchestration.runs.terminal import list_progress_sinks, show_progress, write_printed_lines

        if self.as_json:
            yield Progress(source_bytes=total_bytes)
            return
        with write_printed_lines(sys.stdout), nullcontext() if Options.quiet else show_progress(sys.stderr):
            progress = Progress(source_bytes=total_bytes, sinks=list_progress_sinks("copying"))
            try:
                yield progress
            finally:
                progress.close()


class _FolderLines:
    """Printer of a line per folder of the source, such as an artifact, once all objects of the folder are copied."""

    def __init__(self, plan: "SyncPlan", progress: "Progress", output: _Output) -> None:
        self._progress, self._output, self._on_server = progress, output, plan.on_server
        self._objects = Counter(_find_folder(item.key) for item in plan.todo)
        self._copied, self._bytes = Counter[str](), Counter[str]()

    def add_bytes(self, count: int) -> None:
        """Count bytes that passed through this machine."""
        self._progress.add({"source_bytes": count})
        self._progress.show()

    def add(self, item: "SyncItem") -> None:
        """Count a copied object, and print the line of its folder if it is the folder's last object."""
        folder = _find_folder(item.key)
        self._copied[folder] += 1
        self._bytes[folder] += item.bytes
        if self._on_server:
            self.add_bytes(item.bytes)
        if self._copied[folder] == self._objects[folder]:
            self._print("✓", folder, "green")

    def fail(self) -> None:
        """Print a line for each folder whose copy is incomplete. Its copied objects are kept."""
        for folder, count in self._copied.items():
            if count < self._objects[folder]:
                self._print("✗", folder, "red")

    def _print(self, mark: str, folder: str, style: str) -> None:
        from dataprep_assets.orchestration.runs.terminal import clear_step, print_line
        from dataprep_assets.planning.cost import format_bytes

        count, total = self._copied[folder], self._objects[folder]
        objects = count_of(total, "object") if count == total else f"{count:,} of {count_of(total, 'object')}"
        if not self._output.as_json:
            clear_step()
            width = min(max(map(len, self._objects)), _WIDEST)
            print_line(f"{mark} {folder:<{width}}  {objects}  {format_bytes(self._bytes[folder])}", style)


def _find_folder(key: str) -> str:
    """Return the folder of an object, shortened to its first two levels: the dataset and the artifact."""
    return "/".join(key.split("/")[:-1][:2]) or "."


def _is_closed(place: "StoreAddress") -> bool:
    """Return whether a location is a private folder, or contains a private dataset."""
    from dataprep_assets.stores.connect import LocalAddress
    from dataprep_assets.stores.files import OTHERS

    if not isinstance(place, LocalAddress) or not place.root.is_dir():
        return False
    datasets = (entry for entry in place.root.iterdir() if not entry.name.startswith("."))
    return any(not folder.stat().st_mode & OTHERS for folder in (place.root, *datasets) if folder.is_dir())


@contextmanager
def _lock_alone(work: Path, target_address: "StoreAddress") -> Iterator[None]:
    """Lock this folder, because two concurrent copies would mistake each other's files for their own.

    Raises TransferError if another command is copying in it.
    """
    from dataprep_assets.stores.locks import open_own_file, try_lock

    work.parent.mkdir(parents=True, exist_ok=True)
    # Put the lock file next to the work folder, because the work folder is removed at the end. Never remove the lock
    # file, because two commands could then lock different files of the same name.
    with open(work.with_suffix(".lock"), "ab", opener=open_own_file) as lock:
        if not try_lock(lock, required=False):
            raise TransferError(
                f"{target_address.url}: another `dataprep sync` is copying to this location. Run the command again "
                "when the other copy has finished"
            )
        yield


def _sync(
    source_address: "StoreAddress",
    target_address: "StoreAddress",
    prefix: str,
    select: tuple[str, ...],
    output: _Output,
    work: Path,
    *,
    dry_run: bool,
) -> None:
    """Copy a prefix from the source to the target; with `dry_run`, only plan the copy and print the plan."""
    from dataprep_assets.integrity.receipt import NAME
    from dataprep_assets.integrity.sync import MANIFEST, Sync
    from dataprep_assets.serving.window.release import MANIFEST as RELEASE
    from dataprep_assets.stores.connect import find_common_server, list_consumer_lines

    # Copy a release by its own manifest, because this manifest lists all of the release's files. With `--select`, copy
    # the files of a release like any other files.
    if not select and source_address().head(f"{prefix}{RELEASE}") is not None:
        _sync_release(source_address, target_address, prefix, work, output, dry_run=dry_run)
        return
    if source_address().head(NAME) is not None:
        raise ConfigError(
            f"{source_address.url}: cannot copy a single artifact, because the copy needs a manifest next to it. Copy "
            "its parent folder with --select 'NAME/**'"
        )
    copying = Sync(
        source=source_address(),
        destination=target_address(),
        work=work,
        prefix=prefix,
        select=select,
        server=find_common_server(source_address, target_address),
    )
    plan = copying.plan()
    output.plan = {"bytes": plan.bytes, "on_server": plan.on_server, "notes": list(plan.findings)}
    output.plan["objects"] = [asdict(item) for item in plan.items]
    for finding in plan.findings:
        output(f"note: {finding}")
    for item in plan.items if dry_run else ():
        output(f"{item.action:<8}{item.bytes:>18,} B  {item.key} ({item.why})")
    how = "on the server" if plan.on_server else "through this machine"
    size = f"{count_of(plan.bytes, 'byte')}, about {count_of(plan.requests, 'request')}, {how}"
    output(f"{count_of(len(plan.items), 'object')}, {len(plan.todo)} to copy: {size}")
    if dry_run:
        return
    if not plan.items:
        raise ConfigError(f"{source_address.url}: nothing to copy. Check the prefix and --select")

    began = time.monotonic()
    with output.show_copying(plan.bytes) as progress:
        lines = _FolderLines(plan, progress, output)
        try:
            copied_count = copying.run(plan, lines.add, lines.add_bytes)
        except BaseException:
            lines.fail()
            raise
    output(_describe_copy(copied_count, "object", plan.bytes, began))
    output(f"Copy complete, digests match: {target_address.url}/{MANIFEST}")
    for line in list_consumer_lines(target_address):
        output(line)


def _describe_copy(count: int, noun: str, copied_bytes: int, began: float) -> str:
    from dataprep_assets.planning.cost import format_bytes

    seconds = time.monotonic() - began
    return f"Copied {count_of(count, noun)} ({format_bytes(copied_bytes)}) in {seconds:,.1f} s"


def _sync_release(
    source: "StoreAddress",
    destination: "StoreAddress",
    prefix: str,
    scratch: Path,
    output: _Output,
    *,
    dry_run: bool,
) -> None:
    """Copy a release: compare every file with the manifest, and copy the manifest last."""
    from dataprep_assets.pipelines.release.migration import migrate, plan_migration
    from dataprep_assets.pipelines.release.published import format_consumer_code, list_consumer_environment
    from dataprep_assets.serving.window import release

    source_release, destination_release = (
        release.ReleaseLocation(address(), prefix) for address in (source, destination)
    )
    plan = plan_migration(source_release, destination_release)
    missing_keys = {file.key for file in plan.files_to_copy}
    output.plan = {"bytes": plan.bytes, "on_server": False, "release": plan.release.digest, "notes": []}
    output.plan["objects"] = [
        {
            "key": file.key,
            "bytes": file.bytes,
            "sha256": file.sha256,
            "action": "copy" if file.key in missing_keys else "skip",
        }
        for file in plan.release.files
    ]
    for line in plan.lines:
        output(line)
    if dry_run:
        return
    began = time.monotonic()
    with output.show_copying(plan.bytes) as progress:

        def add_bytes(count: int) -> None:
            progress.add({"source_bytes": count})
            progress.show()

        migrate(plan, source_release, destination_release, scratch, add_bytes)
    output(_describe_copy(len(plan.files_to_copy), "file", plan.bytes, began))
    output(f"Copy complete, digests match: {destination_release}/{release.MANIFEST}")
    for line in [*list_consumer_environment(destination), format_consumer_code(destination_release)]:
        output(line)
