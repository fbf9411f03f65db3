"""The data card: built only from receipts, rebuilt only if they change, and checked against them."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.artifact.build import WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest, Partitions
from dataprep_assets.engine.card.card import DATA_CARD, CardFacts, build_data_card_spec
from dataprep_assets.engine.card.contents import PAGE, CardSource, CardSubject, SplitCounts, add_attribution
from dataprep_assets.engine.checks.check import Check, Finding
from dataprep_assets.engine.checks.verdicts import WholeArtifactChecks
from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.engine.yaml.declaration import Attribution, CardDeclaration, Creator, DatasetDeclaration
from dataprep_assets.errors import MissingArtifactError
from dataprep_assets.formats import croissant
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.receipt import Ledger, Receipt
from dataprep_assets.integrity.verify import verify_path
from dataprep_assets.stores.files import digest_value
from dataprep_assets_tests.messages import raises

PATIENT = "patient-1234567"
"""The name of a partition, also part of every file name, which a sensitive card must not contain."""
LEDGER = Ledger(rows_in=12, documents=9, tokens=90, dropped={"retracted": 2, "bad_json": 1}, source_bytes=77)


class Letters:
    """A dataset with one artifact in two partitions, whose text and ledger a test may change, and its card."""

    def __init__(self, root: Path, **declared: Any) -> None:
        self.store = LocalArtifacts(root)
        self.declaration = DatasetDeclaration(dataset="letters", description="Letters | of nobody.", **declared)
        self.source = Attribution(license="CC-BY-4.0", homepage="https://example.org", citation="@misc{x}\n```")

    def letters(self) -> ArtifactSpec:
        check = Check[None]("is_read", "Somebody has read it.", lambda _: Finding(passed=True, summary=""))
        return ArtifactSpec(
            declaration=self.declaration,
            name="letters",
            description="What was written.",
            kinds={"file"},
            partitions=Partitions.from_keys(["a", PATIENT], "letter"),
            build=lambda request: [],
            recipes=lambda store, slots: [],
            check_groups=(WholeArtifactChecks(checks=(check,), open=lambda *_: None),),
        )

    @property
    def card(self) -> ArtifactSpec:
        letters = self.letters()
        return build_data_card_spec(
            CardSubject(
                declaration=self.declaration,
                specs=[letters],
                products=[letters],
                counted=[letters],
                sources=lambda store, receipts: [
                    add_attribution(
                        CardSource(name=f"box of {PATIENT}", kind="hub", place="hf://datasets/a/b"), self.source
                    )
                ],
                splits=lambda receipts: [SplitCounts(split="train", rows=12, documents=9, tokens=90)],
            )
        )

    def write(self, text: str = "Dear all", ledger: Ledger = LEDGER, names: Sequence[str] = ("a", PATIENT)) -> None:
        """Write the letters as a run does."""
        for name in names:
            recipe = Recipe(
                artifact=self.declaration.artifact("letters", name),
                key=digest_value([name, text, ledger.to_json()]),
                version=3,
            )

            def fill(staged: Path, name: str = name) -> WrittenFiles:
                (staged / f"{name}.txt").write_text(f"{text}, {name}")
                # Only the first partition has rows, so the sum over the partitions is this ledger.
                return WrittenFiles(inputs={}, ledger=ledger if name == "a" else Ledger())

            ensure_built(recipe, self.store, fill)

    def make(self) -> tuple[Receipt, bool]:
        """Build the card, and return its receipt and whether it was already up to date."""
        (outcome,) = self.card.build(BuildRequest(store=self.store))
        assert outcome.receipt is not None
        return outcome.receipt, outcome.reused

    @property
    def folder(self) -> Path:
        return self.store.directory(self.declaration.artifact(DATA_CARD))

    @property
    def files(self) -> dict[str, bytes]:
        """The card's files."""
        return {name: (self.folder / name).read_bytes() for name in (PAGE, croissant.NAME)}

    def check(self) -> dict[str, Finding]:
        """Return the findings of the card's checks."""
        return dict(self.card.examine(self.store, ()))


@pytest.fixture
def letters(tmp_path: Path) -> Letters:
    made = Letters(tmp_path / "here")
    made.write()
    return made


def test_a_card_shows_counts_drops_retractions_license_lineage_and_checks(letters: Letters) -> None:
    receipt, reused = letters.make()
    assert not reused
    page = letters.files[PAGE].decode()
    for line in (
        "12 rows read, 9 documents, 90 tokens, 3 rows dropped, 2 of them retracted.",
        "Licenses of the sources: CC-BY-4.0.",
        "| train | – | 12 | 9 | 90 |",
        "| bad_json | 1 |",
        "| retracted | 2 |",
        "| letters | the sources | 3 | 2 letters |",
        "| letters | is_read | blocks | Somebody has read it. |",
        "````\n@misc{x}\n```\n````",
    ):
        assert line in page
    facts = CardFacts.from_receipt(receipt)
    assert (facts.rows, facts.documents, facts.dropped, facts.retracted, facts.described_files) == (12, 9, 3, 2, 2)
    assert facts.undeclared == ("card.homepage", "card.creators", "card.published")
    assert b"https://spdx.org/licenses/CC-BY-4.0" in letters.files[croissant.NAME]
    assert {name: finding.passed for name, finding in letters.check().items()} == {"card_matches_receipts": True}


def test_a_card_contains_nothing_about_the_machine_and_is_equal_everywhere(letters: Letters, tmp_path: Path) -> None:
    letters.make()
    other = Letters(tmp_path / "there", workers=7, storage=str(tmp_path / "there"), verify="size", owners=("team:a",))
    other.write()
    other.make()
    assert other.files == letters.files
    for data in letters.files.values():
        assert str(tmp_path).encode() not in data
        assert (
            letters.store.require(letters.declaration.artifact("letters", "a")).measured["created"].encode() not in data
        )


def test_a_card_is_rebuilt_only_when_its_content_changes(letters: Letters) -> None:
    letters.make()
    assert letters.make()[1], "nothing changed"
    assert list(find_stale([letters.card], letters.store)) == []
    letters.write("Dear others")
    (one,) = find_stale([letters.card], letters.store)
    (behind,) = (v for v in verify_path(letters.store.root) if v.defects or v.changed_inputs)
    assert (behind.name, behind.defects) == ("letters/data_card", ())
    assert behind.changed_inputs == ("letters/a", f"letters/{PATIENT}")
    assert (one.kind, one.reason) == ("input changed", f"its inputs changed: letters/a, letters/{PATIENT}")
    assert not letters.make()[1]
    letters.write("Dear others", Ledger(rows_in=12, documents=8, tokens=80, dropped={"retracted": 4}))
    (one,) = find_stale([letters.card], letters.store)
    assert one.reason == "its source changed: counts"
    letters.make()
    letters.write("Dear others", Ledger(rows_in=12, documents=8, tokens=80, dropped={"retracted": 4}, blank_lines=1))
    assert letters.make()[1], "a card does not count blank lines"


def test_a_changed_key_of_the_card_causes_a_rebuild(letters: Letters) -> None:
    letters.make()
    card = CardDeclaration(license="MIT", creators=(Creator(name="Me", kind="person"),), published="2026-01-31")  # type: ignore[arg-type]
    letters.declaration = letters.declaration.model_copy(update={"card": card})
    (one,) = find_stale([letters.card], letters.store)
    assert one.kind == "settings changed"
    assert one.reason.startswith("card.license was not set, now MIT")
    letters.make()
    assert "\nMIT\n" in letters.files[PAGE].decode()
    assert '"datePublished": "2026-01-31"' in letters.files[croissant.NAME].decode()


def test_without_a_receipt_there_is_no_card_and_the_missing_one_is_named(letters: Letters) -> None:
    shutil.rmtree(letters.store.directory(letters.declaration.artifact("letters", PATIENT)))
    with raises(MissingArtifactError, f"letters/letters/{PATIENT}"):
        letters.make()
    assert not letters.folder.exists()


def test_a_card_of_other_receipts_fails_with_the_line_that_differs(letters: Letters) -> None:
    letters.make()
    letters.write(ledger=Ledger(rows_in=12, documents=9, tokens=90, dropped={"bad_json": 3}))
    found = letters.check()["card_matches_receipts"]
    assert not found.passed
    assert "dataset_card.md: line 5 is '12 rows" in found.summary


def test_an_edited_card_fails(letters: Letters) -> None:
    letters.make()
    path = letters.folder / croissant.NAME
    path.write_bytes(path.read_bytes().replace(b'"sha256": "', b'"sha256": "0', 1))
    assert not letters.check()["card_matches_receipts"].passed


def test_the_card_of_a_sensitive_dataset_contains_only_counts(tmp_path: Path) -> None:
    made = Letters(tmp_path, sensitive=True)
    made.write()
    receipt, _ = made.make()
    digests = [r.content for n in ("a", PATIENT) if (r := made.store.require(made.declaration.artifact("letters", n)))]
    texts = {**made.files, "receipt.json": (made.folder / "receipt.json").read_bytes()}
    for name, data in texts.items():
        for secret in (PATIENT, "hf://datasets/a/b", "a.txt", *digests):
            assert secret.encode() not in data, (name, secret)
    assert "| letters | < 11 letters | < 11 | " in texts[PAGE].decode()
    assert "rows in" not in texts[PAGE].decode()
    assert CardFacts.from_receipt(receipt).described_files == 0
    assert [node["@type"] for node in json.loads(texts[croissant.NAME])["distribution"]] == ["cr:FileSet"]
    made.write(ledger=Ledger(rows_in=1, documents=1, tokens=1))
    told = made.check()["card_matches_receipts"]
    assert not told.passed
    assert "the receipts say '" not in told.summary
