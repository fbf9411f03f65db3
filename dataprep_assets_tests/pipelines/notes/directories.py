"""Directories of two datasets of notes, and what proofs find in them. Holds no test."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.graph.finding import Finding
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.notes import tfds_reader
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.replay_declaration import ReplayDeclaration
from dataprep_assets.pipelines.notes.tfds_directory import prove_directory
from dataprep_assets_tests.pipelines.notes.pipeline import declaration

SPLITS: dict[str, float] = {"train": 0.7, "val": 0.3}
NOTES = declaration(splits=SPLITS)
OTHER = declaration(dataset="replay", template={"header": "replay\n"}, splits=SPLITS)


def directory(root: Path, notes: NotesDeclaration | ReplayDeclaration = NOTES) -> Path:
    return LocalArtifacts(root).directory(notes.artifact("tfds_directory")) / notes.dataset / "1.0.0"


def leave_tfds_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where TFDS is not installed: its reader takes seconds each time, and has tests of its own."""
    monkeypatch.setattr(tfds_reader, "_NEEDED", ("tensorflow_of_another_world",))


def proven(found: Iterator[tuple[str, Finding]]) -> dict[str, Finding]:
    return dict(found)


def failed(found: dict[str, Finding]) -> set[str]:
    """Names of what failed, but the reader that is not there."""
    return {name for name, finding in found.items() if not finding.passed} - {"tfds_reads"}


def prove(root: Path) -> dict[str, Finding]:
    """Every finding on the TFRecord directory of `NOTES` below a root."""
    return proven(prove_directory(NOTES, LocalArtifacts(root), "tfrecord"))


def edit(path: Path, change: Callable[[Any], None]) -> None:
    value = json.loads(path.read_bytes())
    change(value)
    path.unlink()
    path.write_text(json.dumps(value))
