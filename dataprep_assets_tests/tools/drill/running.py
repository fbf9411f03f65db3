"""Faults during a build: the disk is full at some write, the clock jumps, a file changes without a new modification
time.

An artifact is deleted and rebuilt with the fault. Then either the run reports the fault, no finished artifact exists,
and the next run gives the same bytes; or the fault had no effect, and the bytes are equal at once.
"""

import errno
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from dataprep_assets.engine.artifact.spec import BuildRequest
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.receipt import NAME
from dataprep_assets.integrity.verify import verify_path
from dataprep_assets_tests.tools.drill.box import Box, Target, write
from dataprep_assets_tests.tools.drill.bytes_of_files import flipped
from dataprep_assets_tests.tools.drill.faults import Fault, InapplicableError
from dataprep_assets_tests.tools.drill.judge import Notice, told_of

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_state: dict[str, Any] = {"installed": False, "root": None, "left": 0, "refused": 0}


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or _state["root"] is None:
        return
    path, _, flags = arguments
    if not isinstance(path, str | os.PathLike) or not flags & _WRITES or _state["root"] not in str(path):
        return
    if str(path).endswith(".lock"):
        return  # a lock file is created once and kept, and a full disk has room for existing files
    _state["left"] -= 1
    if _state["left"] == 0:
        _state["refused"] += 1
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


@contextmanager
def full_disk(root: str, at: int) -> Iterator[None]:
    """Refuse, for lack of space, the `at`-th file opened for writing below a root."""
    if not _state["installed"]:
        sys.addaudithook(_hook)
        _state["installed"] = True
    _state.update(root=root, left=at, refused=0)
    try:
        yield
    finally:
        _state["root"] = None


def build(box: Box, target: Target) -> str:
    """Build the target; return the error of the run, or an empty text."""
    chosen = [] if target.spec.partitions is None else [str(target.slot)]
    try:
        for outcome in target.spec.build(BuildRequest(store=box.bench.store, partitions=chosen)):
            if outcome.error is not None:
                raise outcome.error
    except (DataprepError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def content(box: Box, target: Target) -> str:
    """Return the digest of the finished artifact; empty if there is none."""
    receipt = box.bench.store.receipt(target.spec.locate_artifact(box.bench.store, target.slot))
    return "" if receipt is None else receipt.content


def take_away(box: Box, target: Target) -> None:
    """Remove an artifact. Raises InapplicableError if it does not exist."""
    folder = box.folder(target)
    if not (folder / NAME).exists():
        raise InapplicableError
    (folder / NAME).unlink()
    for path in folder.iterdir():
        if path.name != ".staging":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def aftermath(box: Box, target: Target, before: str, said: str, *, root: Path | None = None) -> Notice:
    """Return whether the fault left nothing wrong, at once or after the next run.

    Args:
        box: The artifacts.
        target: The artifact that was built.
        before: Its content without the fault.
        said: The error of the run with the fault.
        root: The folder that must be intact afterwards; by default the whole box.
    """
    left = content(box, target)
    if said and left not in ("", before):
        return Notice(others=(f"after {said}: finished with other bytes",))
    if not said and left != before:
        return Notice(others=("no error, and other bytes",))
    if said:
        again = build(box, target)
        if again or content(box, target) != before:
            return Notice(others=(f"after {said}: the next run does not mend it: {again}",))
    wrong = [f"{v.name}: {told[0]}" for v in verify_path(root or box.root) if (told := told_of(v))]
    return Notice(others=tuple(wrong)) if wrong else Notice(run=said or "the same bytes")


def disk_full(box: Box, target: Target, random: Random) -> Notice:
    """Fail for lack of space at one of the files that a build opens."""
    before = content(box, target)
    take_away(box, target)
    with full_disk(str(box.root), random.randrange(1, 3)):
        said = build(box, target)
    if not _state["refused"]:
        raise InapplicableError  # the fault never happened, because this process opens fewer files
    notice = aftermath(box, target, before, said)
    if notice.run and "full" not in said and "No space" not in said:
        return replace(notice, run="", others=(f"not told as a full disk: {said}",))
    return notice


def clock_jumps(box: Box, target: Target, random: Random) -> Notice:
    """Return a different year at each reading of the clock."""
    before = content(box, target)
    take_away(box, target)
    real = time.time

    def jumping() -> float:
        return real() + random.choice((-40, 40, -1, 0)) * 365 * 86400.0

    with mock.patch("time.time", jumping):
        said = build(box, target)
    return aftermath(box, target, before, said)


def source_changed_under_its_time(box: Box, target: Target, random: Random) -> str:
    """Change a byte of a snapshot's source file without changing its size and time."""
    import json

    lines = (box.folder(target) / "files.jsonl").read_bytes().splitlines()
    name = json.loads(random.choice(lines))["relpath"]
    found = [path for path in (box.bench.folder / "source").rglob("*") if str(path).endswith(f"/{name}")]
    if not found:
        raise InapplicableError
    was = found[0].stat()
    write(found[0], flipped(found[0].read_bytes(), random))
    os.utime(found[0], ns=(was.st_atime_ns, was.st_mtime_ns))
    return str(name)


def damaged_under_its_time(box: Box, target: Target, random: Random) -> str:
    """Flip a bit of an artifact's file without changing its size and time."""
    from dataprep_assets_tests.tools.drill.bytes_of_files import files_of

    found = files_of(box.folder(target))
    if not found:
        raise InapplicableError
    path = random.choice(found)
    was = path.stat()
    write(path, flipped(path.read_bytes(), random))
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    return path.name


def running_faults(box: Box, places: int) -> Iterator[Fault]:
    """Yield the faults of every artifact that can be built by itself."""
    for target in box.targets():
        for place in range(places):
            if target.spec.name in ("snapshot", "blend_snapshot"):
                change = source_changed_under_its_time
                yield Fault(kind="clock", name="source changed", target=target, apply=change, place=place)
            yield Fault(kind="clock", name="damaged", target=target, apply=damaged_under_its_time, place=place)
            # Exclude the engine certificate, which cannot be built by itself, because the dataset's plan determines the
            # documents that the certificate compares.
            if target.spec.name not in ("engine_certificate",):
                yield Fault(
                    kind="clock", name="jumps while it is built", target=target, happens=clock_jumps, place=place
                )
                yield Fault(kind="disk", name="full while it is built", target=target, happens=disk_full, place=place)
