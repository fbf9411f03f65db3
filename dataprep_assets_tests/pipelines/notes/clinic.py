"""Small cohorts written for one test, and their packed rows read back from the files that people use."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.notes.cohorts.packed_files import list_packed_paths
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets_tests.pipelines.notes.pipeline import SAMPLES, declaration


def note(text: Any, date: Any = "2011-01-01", **more: Any) -> dict[str, Any]:
    """A note of a patient."""
    return {"text": text, "date": date, **more}


def patient(name: Any, *notes: Any, **more: Any) -> dict[str, Any]:
    """A patient's record."""
    return {"patient_id": name, "notes": list(notes), **more}


def written(folder: Path, cohorts: Mapping[str, Sequence[Any] | bytes]) -> Path:
    """A folder of cohort files: month → patients, or bytes as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    for month, patients in cohorts.items():
        content = patients if isinstance(patients, bytes) else json.dumps(patients).encode()
        (folder / f"{month}.json").write_bytes(content)
    return folder


def plain(source: Path, months: Sequence[str] = ("2010-01", "2010-01"), **changes: Any) -> NotesDeclaration:
    """A declaration without a header, of the months from first to last."""
    base: dict[str, Any] = {
        "dataset": "notes",
        "cohorts": {},
        "template": {},
        "months": {"first": months[0], "last": months[-1]},
        "row_length": 32,
        "rows_per_shard": 4,
        "tokenizer": {"path": SAMPLES / "sample_corpus" / "tokenizer", "engine": "tokenizers"},
    }
    return declaration(source, **(base | changes))


def rows(notes: NotesDeclaration, root: Path, month: str, split: str = "train") -> list[dict[str, list[int]]]:
    """The packed rows of a month, from its JSON lines."""
    directory = LocalArtifacts(root).directory(notes.artifact("packed_cohorts", month))
    path = directory / list_packed_paths(notes, month)[split].jsonl
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def segments(row: Mapping[str, Sequence[int]]) -> list[list[int]]:
    """The ids of each segment of a prepacked row."""
    found: dict[int, list[int]] = {}
    for token, segment in zip(row["inputs"], row["inputs_segmentation"], strict=True):
        if segment:
            found.setdefault(segment, []).append(token)
    return [found[number] for number in sorted(found)]
