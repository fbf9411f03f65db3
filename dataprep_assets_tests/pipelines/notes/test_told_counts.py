"""What `dataprep run` tells of a sensitive dataset before and after a retraction does not tell what one patient had."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dataprep_assets.integrity.receipt import read_receipt
from dataprep_assets_tests.cli.commands import dataprep
from dataprep_assets_tests.database_cells import cells
from dataprep_assets_tests.pipelines.notes.clinic import note, patient, written

pytestmark = pytest.mark.slow
MONTHS = ["2009-10", "2009-11", "2009-12"]
ROW = 64


class Ward:
    """A project of `dataprep init` with a sensitive dataset of three months of twelve patients."""

    def __init__(self, root: Path) -> None:
        self.root, self.project = root, root / "ward"
        assert dataprep(root, "init", str(self.project), project=root).returncode == 0
        self.folder = self.project / "ward" / "defs" / "years"
        self.people = {
            m: [patient(f"{m} {i}", *[note(f"tea and cake of {m}, {i}")] * 4) for i in range(12)] for m in MONTHS
        }
        declared = {
            "dataset": "years",
            "source": {"kind": "local", "path": "./cohorts"},
            "cohorts": {},
            "months": {"first": MONTHS[0], "last": MONTHS[-1]},
            "template": {},
            "tokenizer": {"path": "../sample_corpus/tokenizer", "name": "sample", "engine": "tokenizers"},
            "document": {"separator": "<|endoftext|>"},
            "pad": {"token": "<|pad|>"},
            "patient_key": {"env": "WARD_KEY"},
            "splits": {"train": 1.0},
            "row_length": ROW,
            "rows_per_shard": 8,
            "workers": 1,
            "accept": {"tfds_reads": "TensorFlow has a test of its own"},
        }
        self.folder.mkdir(parents=True)
        text = yaml.safe_dump({"type": "dataprep_assets.components.PackedCohorts", "attributes": declared})
        (self.folder / "defs.yaml").write_text(text)

    def __call__(self, *line: str, code: int = 0) -> str:
        done = dataprep(self.root, *line, project=self.project, WARD_KEY="k" * 40)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def counts(self) -> tuple[int, int, int]:
        """Patients, notes and tokens of the rows, by the receipts, which nobody else can read."""
        found = [read_receipt(self.root / "artifacts/years/packed_cohorts" / month) for month in MONTHS]
        ledgers = [one.ledger for one in found if one is not None and one.ledger is not None]
        patients = sum(one.facts["patients"] for one in found if one is not None)
        return patients, sum(one.documents for one in ledgers), sum(one.tokens for one in ledgers)

    def shares(self) -> list[float]:
        """Every number with a point in the metadata and tables of the latest run."""
        latest = max((self.root / "home/history/runs").glob("*-*.db"), key=lambda one: one.stat().st_mtime)
        return [share for _, value in cells(latest) for share in _floats(_parsed(value))]


def _parsed(value: bytes) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return None


def _floats(value: Any) -> Iterator[float]:
    """The fills of rows below a JSON value."""
    if isinstance(value, list):
        for one in value:
            yield from _floats(one)
    elif isinstance(value, dict):
        if isinstance(fill := value.get("fill"), float):
            yield fill
        if isinstance(fill, dict) and isinstance(fill.get("value"), float):
            yield fill["value"]
        for one in value.values():
            yield from _floats(one)


def _numbers(text: str) -> set[str]:
    """The numbers of the lines that count: of patients, notes, tokens and rows."""
    lines = [line for line in text.splitlines() if re.search(r"\b(patients|notes|rows of)\b", line)]
    return {found for line in lines for found in re.findall(r"\d[\d,.]*\d|\d", line)}


def test_a_patient_in_each_month_is_told_with_each_month_once_and_then_nothing_by_difference(tmp_path: Path) -> None:
    ward = Ward(tmp_path)
    written(ward.folder / "cohorts", {m: [*people, patient("same", note("x"))] for m, people in ward.people.items()})
    said = ward("run", "years", code=1)
    assert f"patients in several cohorts: < 11, of {', '.join(MONTHS)}. Nothing was packed." in said
    assert [said.count(month) for month in MONTHS] == [1, 1, 1]
    written(ward.folder / "cohorts", ward.people)
    before = ward("run", "years")
    patients, notes, tokens = ward.counts()
    assert (patients, notes) == (36, 144)
    assert {f"{patients}", f"{notes}", f"{tokens:,}"} <= _numbers(before)
    (ids := tmp_path / "ids").write_text("2009-10 3\n")
    said = ward("retract", "years", "--ids", str(ids))
    # the singular would tell that it is one
    assert "found < 11: < 11 patients in 1 month" in said
    assert "< 11 patient " not in said
    after = ward("run", "years")
    left = ward.counts()
    assert left[:2] == (35, 140)
    assert _numbers(after) & {f"{one:,}" for one in left} == set()
    assert "about 30 patients" in after
    assert "about 100 notes" in after
    # nor how full the rows are: with the number of rows that would be the tokens
    assert "filled to about 0." in after
    shares = ward.shares()
    assert shares
    assert all(round(10 * share, 6) == int(10 * share + 1e-6) for share in shares)
