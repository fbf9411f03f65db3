"""`dataprep diff`: compare two locks, storage roots, dataset folders or buckets without reading their data."""

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import AsJson
from dataprep_assets.engine.privacy import Privacy, load_privacy
from dataprep_assets.errors import ConfigError, DataprepError, MissingArtifactError
from dataprep_assets.stores.files import OTHERS

if TYPE_CHECKING:
    from dataprep_assets.engine.lock.lock import Lock

_SIDE = "Lock file, storage root, dataset folder, s3://… or gs://… to compare."


def command(
    a: Annotated[str, typer.Argument(help=_SIDE)],
    b: Annotated[str, typer.Argument(help=_SIDE)],
    dataset: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Compare this dataset. Required if a storage root has several datasets."),
    ] = None,
    json_: AsJson = False,
) -> int:
    """Compare two locks, storage roots or buckets. Exits with 0 if they are equal, with 1 if they differ."""
    from dataprep_assets.engine.lock.difference import compare_locks

    try:
        sides = [_read_side(side, dataset) for side in (a, b)]
    # Exit with the code of wrong usage, because 1 means that the sides differ, as in diff(1).
    except DataprepError as error:
        raise ConfigError(str(error)) from error
    locks = [lock for lock, _ in sides]
    comparison = compare_locks(locks[0], locks[1], (a, b))
    privacy = _find_strictest_privacy(locks, are_closed=any(is_closed for _, is_closed in sides))
    if json_:
        print(json.dumps(comparison.to_json(privacy), indent=1, ensure_ascii=False))
    else:
        print("\n".join(comparison.lines(privacy)))
    return 0 if comparison.is_empty else 1


def _find_strictest_privacy(locks: "Sequence[Lock]", *, are_closed: bool) -> Privacy:
    """Return the stricter privacy of the two sides; a dataset that cannot be loaded or has private files is private."""
    private = Privacy(closed=True, dataset=locks[0].dataset)
    privacies = [private] if are_closed else []
    with suppress(ConfigError):  # outside a project, there are no declarations to read
        for name in project.list_kinds().keys() & {lock.dataset for lock in locks}:
            try:
                privacies.append(load_privacy(project.use_dataset(name).declaration))
            except ConfigError:
                privacies.append(private)
    return reduce(Privacy.choose_stricter, [*privacies, *(lock.privacy for lock in locks)])


def _read_side(where: str, dataset: str | None) -> "tuple[Lock, bool]":
    """Return the lock of one side, and whether it consists of receipts in a private folder."""
    from dataprep_assets.engine.lock.lock import build_lock, read_lock
    from dataprep_assets.integrity.receipt import NAME
    from dataprep_assets.integrity.verify import find_dataset_place, read_receipts_below, read_store_receipts
    from dataprep_assets.stores.connect import LocalAddress

    location = project.open_store(where)
    if isinstance(location, LocalAddress) and location.root.is_file():
        return read_lock(location.root), False
    if isinstance(location, LocalAddress) and not location.root.is_dir():
        raise MissingArtifactError(f"{where}: no such lock file or folder. Correct the path")
    if dataset is not None:
        location = find_dataset_place(location, dataset)
    receipts = (
        read_receipts_below(location.root) if isinstance(location, LocalAddress) else read_store_receipts(location())
    )
    lock = build_lock(receipts, where, dataset)
    files = location.root.rglob(NAME) if isinstance(location, LocalAddress) else ()
    return lock, any(map(_is_closed, files))


def _is_closed(file: Path) -> bool:
    """Return whether only its owner can read a file; False if a run has removed the file."""
    try:
        return not file.stat().st_mode & OTHERS
    except FileNotFoundError:
        return False
