"""The data card of notes: counts alone where they are sensitive, and licenses of what is combined in no key."""

import json
from pathlib import Path

from dataprep_assets.engine.artifact.spec import BuildRequest
from dataprep_assets.engine.card.card import DATA_CARD
from dataprep_assets.engine.card.contents import PAGE
from dataprep_assets.formats import croissant
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.notes.component import CombinedCohorts, PackedCohorts
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.replay.replay import build_replay
from dataprep_assets.pipelines.notes.replay.replay_declaration import MixtureDeclaration
from dataprep_assets_tests.pipelines.notes.clinic import note, patient, plain, written
from dataprep_assets_tests.pipelines.notes.pipeline import run_notes

MONTH = "2010-01"


def packed(folder: Path, root: Path, dataset: str) -> NotesDeclaration:
    """A dataset of a few notes of invented people, built below `root`."""
    people = [patient(f"{dataset}-{i}", note(f"{dataset} word{i} " * 3)) for i in range(4)]
    notes = plain(written(folder / dataset, {MONTH: people}), dataset=dataset)
    assert not run_notes(notes, root).failed
    return notes


def card(component: PackedCohorts | CombinedCohorts, store: LocalArtifacts) -> dict[str, str]:
    """The files of a card, made now, and its receipt."""
    (outcome,) = component.spec(DATA_CARD).build(BuildRequest(store=store))
    assert outcome.error is None
    directory = store.directory(component.declaration.artifact(DATA_CARD))
    return {path.name: path.read_text() for path in directory.iterdir()}


def test_a_sensitive_card_holds_counts_that_are_not_small_and_no_month_file_patient_or_digest(tmp_path: Path) -> None:
    notes, store = packed(tmp_path, tmp_path / "out", "clinic"), LocalArtifacts(tmp_path / "out")
    few = card(PackedCohorts(notes.model_copy(update={"sensitive": True})), store)
    assert "| train | – | – | < 11 | " in few[PAGE]
    made = card(PackedCohorts(notes.model_copy(update={"sensitive": True, "small_cell": 4})), store)
    assert "rows_in" not in made[PAGE]
    assert "rows read |" not in made[PAGE]
    receipts = [store.require(notes.artifact("packed_cohorts", MONTH)), store.require(notes.artifact("tfds_directory"))]
    digests = [record.sha256 for receipt in receipts for record in receipt.files] + [r.content for r in receipts]
    for name, text in made.items():
        for secret in (MONTH, "clinic-", "word1", "tfrecord-0", str(tmp_path), receipts[0].inputs["cohort"], *digests):
            assert secret not in text, (name, secret)
    assert [node["@type"] for node in json.loads(made[croissant.NAME])["distribution"]] == ["cr:FileSet"]


def test_the_licenses_of_a_combination_are_in_its_card_alone(tmp_path: Path) -> None:
    store = LocalArtifacts(tmp_path / "out")
    names = [packed(tmp_path, tmp_path / "out", dataset).dataset for dataset in ("clinic", "replay")]
    told, bare = (
        MixtureDeclaration.model_validate(
            {
                "dataset": "both",
                "sensitive": False,
                "sources": [{"dataset": name, **({"license": "MIT"} if licensed else {})} for name in names],
                "card": {"version": "1.0.0"} if licensed else {},
            }
        )
        for licensed in (True, False)
    )
    build_replay(bare, store)
    assert build_replay(told, store)[1], "a license changes no key"
    page = card(CombinedCohorts(told), store)[PAGE]
    assert "| replay | dataset | – | – | – | – | MIT | – |" in page
    assert "* Version: 1.0.0" in page
