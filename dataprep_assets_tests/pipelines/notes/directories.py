"""Directories of two datasets of notes, and what proofs find in them. Holds no test."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.receipt import read_receipt, record_files
from dataprep_assets.pipelines.notes.dataset import notes_specs
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.replay.replay_declaration import MixtureDeclaration
from dataprep_assets.pipelines.notes.tfds import directory_checks
from dataprep_assets_tests.engine.found import run_checks
from dataprep_assets_tests.pipelines.notes.pipeline import declaration

SPLITS: dict[str, float] = {"train": 0.7, "val": 0.3}
NOTES = declaration(splits=SPLITS)
OTHER = declaration(dataset="replay", template={"header": "replay\n"}, splits=SPLITS)


def directory(root: Path, notes: NotesDeclaration | MixtureDeclaration = NOTES) -> Path:
    return LocalArtifacts(root).directory(notes.artifact("tfds_directory")) / notes.dataset / "1.0.0"


def leave_tfds_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where TFDS is not installed: its reader takes seconds each time, and has tests of its own."""
    monkeypatch.setattr(directory_checks, "_REQUIRED_MODULES", ("tensorflow_of_another_world",))


def failed(found: dict[str, Finding]) -> set[str]:
    """Names of what failed, but the reader that is not there."""
    return {name for name, finding in found.items() if not finding.passed} - {"readable_by_tfds"}


def prove(root: Path, notes: NotesDeclaration = NOTES) -> dict[str, Finding]:
    """Every finding on the TFRecord directory of a dataset below a root."""
    spec = next(spec for spec in notes_specs(notes) if spec.name == "tfds_directory")
    return run_checks(spec, LocalArtifacts(root))


def edit(path: Path, change: Callable[[Any], None]) -> None:
    value = json.loads(path.read_bytes())
    change(value)
    path.unlink()
    path.write_text(json.dumps(value))


def sealed(artifact: Path) -> None:
    """Write the receipt of an artifact anew for the files that are there, as a bug would leave it."""
    receipt = read_receipt(artifact)
    assert receipt is not None
    (artifact / "receipt.json").unlink()
    replace(receipt, files=record_files(artifact)).write(artifact)
