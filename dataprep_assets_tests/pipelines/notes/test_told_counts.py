"""The output of commands before and after a retraction in a sensitive dataset does not reveal one patient's counts."""

import re
from pathlib import Path

import pytest
import yaml

from dataprep_assets.integrity.receipt import read_receipt
from dataprep_assets_tests.cli.commands import dataprep
from dataprep_assets_tests.pipelines.notes.clinic import note, patient, written

pytestmark = pytest.mark.slow
MONTHS = ["2009-10", "2009-11", "2009-12"]
COMMANDS = (
    ("run", "years"),
    ("run", "years", "--dry-run"),
    ("show", "years"),
    ("show", "years", "--json"),
    ("status", "years"),
    ("status", "years", "--json"),
    ("list", "years"),
    ("list", "years", "--json"),
    ("check", "years"),
    ("verify", "years"),
)
ROW = 64


class Ward:
    """A `dataprep init` project with a sensitive dataset of three months of twelve patients."""

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
            "accept": {"readable_by_tfds": "TensorFlow has a test of its own"},
        }
        self.folder.mkdir(parents=True)
        text = yaml.safe_dump({"type": "dataprep_assets.components.PackedCohorts", "attributes": declared})
        (self.folder / "defs.yaml").write_text(text)

    def __call__(self, *line: str, code: int = 0) -> str:
        done = dataprep(self.root, *line, project=self.project, WARD_KEY="k" * 40)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def counts(self) -> tuple[int, int, int]:
        """Return the numbers of patients, notes and tokens from the receipts, which only the owner can read."""
        found = [read_receipt(self.root / "artifacts/years/packed_cohorts" / month) for month in MONTHS]
        ledgers = [one.ledger for one in found if one is not None and one.ledger is not None]
        patients = sum(one.facts["patients"] for one in found if one is not None)
        return patients, sum(one.documents for one in ledgers), sum(one.tokens for one in ledgers)

    def all(self) -> str:
        """Return the output of every command, the run first."""
        return "\n".join(self(*line) for line in COMMANDS)


def _numbers(text: str) -> set[str]:
    """Return the standalone numbers in a text."""
    return {found.replace(",", "") for found in re.findall(r"(?<![\w./-])\d[\d,]*(?![\w/-]|\.\d)", text)}


def test_output_before_and_after_a_retraction_contains_no_count_of_the_removed_data(tmp_path: Path) -> None:
    ward = Ward(tmp_path)
    written(ward.folder / "cohorts", {m: [*people, patient("same", note("x"))] for m, people in ward.people.items()})
    said = ward("run", "years", code=1)
    assert "years/packed_cohorts: IntegrityError. Run `dataprep show --private years`" in said
    assert "patients" not in said
    assert "1 patient is in several cohorts" in ward("show", "years", "--private")

    written(ward.folder / "cohorts", ward.people)
    before = ward.all()
    counted = ward.counts()
    assert counted[:2] == (36, 144)
    (ids := tmp_path / "ids").write_text("2009-10 3\n")
    said = ward("retract", "years", "--ids", str(ids))
    assert "< 11 patients" in said
    # The singular would reveal that the count is one.
    assert not re.search(r"\b1 patient\b", said)
    after = ward.all()
    left = ward.counts()
    assert left[:2] == (35, 140)
    for printed in (before, said, after):
        exact = {str(one) for one in (*counted, *left)}
        assert [line for line in printed.splitlines() if _numbers(line) & exact] == []
        assert "%" not in printed
        assert "tea and cake" not in printed
    assert "tea and cake" not in ward("trace", "years", "--shard", "2009-10", "--packed-row", "0")
    private = ward("show", "years", "--private")
    assert "35 patients" in private
    assert "140 notes" in private
