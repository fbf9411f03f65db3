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
from dataprep_assets.engine.privacy import Privacy, privacy_of
from dataprep_assets.errors import ConfigError, DataprepError, MissingArtifactError
from dataprep_assets.stores.files import OTHERS

if TYPE_CHECKING:
    from dataprep_assets.engine.lock.lock import Lock

_SIDE = "A lock, a storage root, a dataset folder, s3://… or gs://…."


def command(
    a: Annotated[str, typer.Argument(help=_SIDE)],
    b: Annotated[str, typer.Argument(help=_SIDE)],
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Dataset to compare, if a root has several.")
    ] = None,
    json_: AsJson = False,
) -> int:
    """Compare two locks, storage roots or buckets. Exits with 0 if they are the same, 1 if they differ."""
    from dataprep_assets.engine.lock.difference import difference

    try:
        sides = [_side(side, dataset) for side in (a, b)]
    except DataprepError as error:  # as in diff(1), 1 means that the sides differ, so an error needs a different code
        raise ConfigError(str(error)) from error
    locks = [lock for lock, _ in sides]
    comparison = difference(locks[0], locks[1], (a, b))
    privacy = _privacy(locks, are_closed=any(is_closed for _, is_closed in sides))
    if json_:
        print(json.dumps(comparison.to_json(privacy), indent=1, ensure_ascii=False))
    else:
        print("\n".join(comparison.lines(privacy)))
    return 0 if comparison.is_none else 1


def _privacy(locks: "Sequence[Lock]", *, are_closed: bool) -> Privacy:
    """Return the strictest privacy of both sides; a dataset that is not loadable or has private files is private."""
    private = Privacy(closed=True, dataset=locks[0].dataset)
    privacies = [private] if are_closed else []
    with suppress(ConfigError):  # outside of a project
        for name in project.kinds().keys() & {lock.dataset for lock in locks}:
            try:
                privacies.append(privacy_of(project.component(name).declaration))
            except ConfigError:
                privacies.append(private)
    return reduce(Privacy.stricter, [*privacies, *(lock.privacy for lock in locks)])


def _side(where: str, dataset: str | None) -> "tuple[Lock, bool]":
    """Return the lock of one side, and whether it consists of receipts in a private folder."""
    from dataprep_assets.engine.lock.lock import lock_of_receipts, read_lock
    from dataprep_assets.integrity.receipt import NAME
    from dataprep_assets.integrity.verify import place_of_dataset, receipts_below, receipts_in
    from dataprep_assets.stores.connect import LocalPlace

    location = project.open_store(where)
    if isinstance(location, LocalPlace) and location.root.is_file():
        return read_lock(location.root), False
    if isinstance(location, LocalPlace) and not location.root.is_dir():
        raise MissingArtifactError(f"{where}: no lock file or folder at this path")
    if dataset is not None:
        location = place_of_dataset(location, dataset)
    receipts = receipts_below(location.root) if isinstance(location, LocalPlace) else receipts_in(location())
    lock = lock_of_receipts(receipts, where, dataset)
    files = location.root.rglob(NAME) if isinstance(location, LocalPlace) else ()
    return lock, any(map(_is_closed, files))


def _is_closed(file: Path) -> bool:
    """Return whether only its owner can read a file; False if a run has removed the file."""
    try:
        return not file.stat().st_mode & OTHERS
    except FileNotFoundError:
        return False
