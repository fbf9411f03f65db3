"""The proof of every artifact of a sensitive dataset: only the owner can read its files on this machine.

`ArtifactSpec` adds it automatically. It examines current file modes, so its verdicts are never remembered.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from dataprep_assets.graph.finding import Finding, Row, judged
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.copies import FETCHED
from dataprep_assets.plural import count_of
from dataprep_assets.stores.private import OTHERS, open_to_others, within_closed_folder

CLOSED_TO_OTHERS = "closed_to_others"
DESCRIPTION = (
    "Folders of the dataset on this machine are 0700 and files 0600 (0400 where read-only): artifacts, copies, spools, "
    "staging and quarantine; and Dagster's own folder is closed."
)
_HOLDS_RUNS = ("storage", "history", "runs", "event_logs", "schedules")
"""Entries of DAGSTER_HOME that show that it holds runs: a folder that has only settings does no harm."""


def places_of(store: ArtifactStore, dataset: str, artifacts: Iterable[Artifact] = ()) -> list[Path]:
    """The local folders that hold these artifacts or copies of them; by default those of the whole dataset."""
    names = [str(artifact) for artifact in artifacts] or [dataset]
    return [place for name in names for place in (store.root / name, store.root / FETCHED / name) if place.exists()]


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
