"""The committed sample of notes equals its generator's output, is small, and is clearly fiction."""

import json

from dataprep_assets_tests.pipelines.notes.pipeline import SAMPLE
from dataprep_assets_tests.tools.sample.make_sample_notes import sample_cohorts


def test_the_committed_cohorts_equal_the_generators() -> None:
    assert {path.name: path.read_bytes() for path in SAMPLE.iterdir()} == sample_cohorts()


def test_the_sample_is_small_and_every_note_says_that_it_is_fiction() -> None:
    cohorts = sample_cohorts()
    assert sum(map(len, cohorts.values())) < 100_000
    for name, content in cohorts.items():
        for patient in json.loads(content):
            assert patient["patient_id"].startswith("FICTION-")
            assert patient["birth_date"].startswith(name.removesuffix(".json"))
            assert all(note["text"].startswith("FICTION") for note in patient["notes"])
