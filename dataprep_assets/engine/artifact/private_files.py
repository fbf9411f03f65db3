"""The check of every artifact of a sensitive dataset: only the owner can read its files on this machine.

`ArtifactSpec` adds it automatically. It examines current file modes, so its verdicts are never remembered.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from dataprep_assets.engine.checks.check import Check
from dataprep_assets.engine.checks.finding import Finding, Row, judged
from dataprep_assets.engine.checks.groups import WholeChecks
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.verified_copies import FETCHED
from dataprep_assets.plural import count_of
from dataprep_assets.stores.private import OTHERS, open_to_others, within_closed_folder

_Closed = tuple[Iterable[Path], str | None]
"""Folders that must be closed, and DAGSTER_HOME if it is set."""
_HOLDS_RUNS = ("storage", "history", "runs", "event_logs", "schedules")
"""Entries of DAGSTER_HOME that show that it holds runs: a folder that has only settings does no harm."""


def places_of(store: ArtifactStore, dataset: str, artifacts: Iterable[Artifact] = ()) -> list[Path]:
    """The local folders that hold these artifacts or copies of them; by default those of the whole dataset."""
    names = [str(artifact) for artifact in artifacts] or [dataset]
    return [place for name in names for place in (store.root / name, store.root / FETCHED / name) if place.exists()]


def closed_files(dataset: str, located: Callable[[ArtifactStore, str | None], Artifact]) -> WholeChecks[_Closed]:
    """The check of an artifact of a sensitive dataset.

    Args:
        dataset: The dataset's name.
        located: Returns the artifact of a partition. Without partitions, the whole dataset is examined: staging, spools
            and verdicts of every other artifact.
    """

    def open(store: ArtifactStore, partitions: Sequence[str]) -> _Closed:
        return places_of(store, dataset, [located(store, one) for one in partitions]), os.environ.get("DAGSTER_HOME")

    return WholeChecks(checks=(CLOSED_TO_OTHERS,), open=open)


@judged
def closed_to_others(places: Iterable[Path], home: str | None = None) -> Finding:
    """Fails if anybody but the owner can read something below the `places`, or open Dagster's folder.

    Args:
        places: Folders of the dataset. The finding names no file in them.
        home: The folder DAGSTER_HOME, if it is set.
    """
    seen, rows = 0, list[Row]()
    for place in places:
        seen += 1
        modes = [mode for _, mode in open_to_others(place)]
        if modes:
            rows.append({"folder": str(place), "open": len(modes), "widest": f"{max(m & OTHERS for m in modes):04o}"})
    rows += _open_home(home)
    if not rows:
        return Finding(
            passed=True,
            summary="Nobody but the owner may read it." if seen else "Nothing of it is on this machine.",
            facts={"folders": seen},
        )
    first = rows[0]["folder"]
    more = f", and in {count_of(len(rows) - 1, 'other folder')}" if len(rows) > 1 else ""
    return Finding(
        passed=False,
        summary=f"Others than the owner may read {first} or what is in it{more}, and the dataset is sensitive. "
        f"Close them: {'; '.join(_remedy(row) for row in rows)}.",
        facts={"open_folders": len(rows)},
        table=tuple(rows),
    )


def _open_home(home: str | None) -> Iterator[Row]:
    """A row for Dagster's folder if it holds runs and others can open it."""
    folder = Path(home) if home else None
    if folder is None or not any((folder / name).exists() for name in _HOLDS_RUNS) or within_closed_folder(folder):
        return
    yield {"folder": str(folder), "open": 1, "widest": f"{folder.stat().st_mode & OTHERS:04o}"}


def _remedy(row: Row) -> str:
    # closing Dagster's folder closes what is in it, and only the folder was examined
    recursive = "" if row["folder"] == os.environ.get("DAGSTER_HOME") else "-R "
    return f"chmod {recursive}go-rwx {row['folder']}"


CLOSED_TO_OTHERS: Check[_Closed] = Check(
    "closed_to_others",
    "Folders of the dataset on this machine are 0700 and files 0600 (0400 where read-only): artifacts, copies, spools, "
    "staging and quarantine; and Dagster's own folder is closed.",
    lambda closed: closed_to_others(*closed),
)
