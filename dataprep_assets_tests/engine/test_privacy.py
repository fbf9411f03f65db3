"""The public form of a sensitive dataset's messages, and its private file with the full texts."""

import pickle
import stat
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.artifact.metadata_values import Location, Markdown, Table
from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.engine.privacy import OPEN, Privacy, find_private_file, load_privacy
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.errors import BadRecordError, ConfigError, CorruptSourceError, DataprepError
from dataprep_assets.integrity.artifacts import LocalArtifacts

CLOSED = Privacy(closed=True, dataset="d")
TEXT = "Jane Doe of ward 7: 3 of 40 notes"


@pytest.fixture
def kept(tmp_path: Path) -> Privacy:
    """Return the privacy of a sensitive dataset with a store."""
    return load_privacy(DatasetDeclaration(dataset="d", sensitive=True), LocalArtifacts(tmp_path))


def read(privacy: Privacy) -> str:
    assert privacy.file is not None
    return privacy.file.read_text(encoding="utf-8")


def test_a_text_is_kept_in_the_private_file_and_its_public_form_has_only_names(kept: Privacy, tmp_path: Path) -> None:
    told = kept.public_text(TEXT, "d/packed: built")
    assert told == "d/packed: built. Run `dataprep show --private d`"
    assert TEXT in read(kept)
    file = find_private_file("d", LocalArtifacts(tmp_path))
    assert file == kept.file
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (file.parent, file.parent.parent)} == {0o700}


def test_a_dataset_that_is_not_sensitive_is_unchanged(tmp_path: Path) -> None:
    privacy = load_privacy(DatasetDeclaration(dataset="d"), LocalArtifacts(tmp_path))
    finding = Finding(passed=False, summary=TEXT, facts={"notes": 3}, table=({"text": TEXT},))
    given: dict[str, Any] = {"notes": 3, "share": 0.5, "what": TEXT, "card": Markdown(TEXT)}
    assert privacy == OPEN
    assert privacy.public_text(TEXT) == TEXT
    assert privacy.public_error(DataprepError(TEXT), more=". Do") == f"{TEXT}. Do"
    assert privacy.public_finding(finding, "d: check") == finding
    assert privacy.public_entries(given) == privacy.public_row(given) == privacy.public_amounts(given) == given
    assert (privacy.public_count(3), privacy.public_share(1, 2)) == ("3", "50.0%")
    assert list(tmp_path.iterdir()) == []


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "public"),
    [
        (DataprepError(TEXT), "DataprepError"),
        (BadRecordError(TEXT, file="a.jsonl", row=7, byte=120), "BadRecordError at file a.jsonl, row 7, byte 120"),
        (pickle.loads(pickle.dumps(CorruptSourceError(TEXT, month="2010-01", relpath=TEXT))),
         "CorruptSourceError at month 2010-01"),
        (raised(KeyError(TEXT)), f"KeyError at {Path(__file__).name}:"),
        (OSError(2, TEXT), "FileNotFoundError"),
    ],
)  # fmt: skip
def test_only_the_class_and_the_position_of_an_error_are_public(error: Exception, public: str, kept: Privacy) -> None:
    told = kept.public_error(error, "d/packed")
    assert told.startswith(public)
    assert told.endswith(". Run `dataprep show --private d`")
    assert TEXT not in told
    assert f"d/packed: {error}" in read(kept)


def test_text_that_a_user_wrote_is_repeated(kept: Privacy) -> None:
    assert kept.public_error(ConfigError("`months.first`: must be before months.last")).startswith("`months.first`")


def test_a_finding_is_public_as_passed_or_failed_with_positions(kept: Privacy) -> None:
    table = ({"file": "2010-01", "row": 7, "notes": 3, "tokens": 400, "defect": TEXT, "fill": 0.5},)
    failed = kept.public_finding(Finding(passed=False, summary=TEXT, table=table), "d/packed: rows_valid")
    assert failed.summary == "failed at file 2010-01, row 7. Run `dataprep show --private d`"
    assert failed.table == (
        {"file": "2010-01", "row": 7, "notes": "< 11", "tokens": "withheld", "defect": "withheld", "fill": "withheld"},
    )
    assert kept.public_finding(Finding(passed=True, summary=TEXT), "d/packed: other").summary == "passed"
    assert read(kept).count(TEXT) == 3, "both sentences, and the row"


def test_metadata_have_names_positions_and_rounded_counts() -> None:
    given: dict[str, Any] = {
        "patients": 37,
        "notes": 2_059,
        "none": 0,
        "files": 3,
        "reused": True,
        "fill": 0.5,
        "pad_id": "5",
        "dagster/row_count": 7,
        "dagster/partition_row_count": 12,
        "dagster/uri": "file:///a/7",
        "path": Location("/a/7"),
        "plot": Markdown("7 patients"),
        "card": Markdown("< 11 patients", ready=True),
        "where": TEXT,
        "row": 7,
        "table": Table([{"split": "val", "rows": 30, "what": TEXT}]),
    }
    assert CLOSED.public_entries(given) == {
        "patients": 40,
        "notes": 2_100,
        "none": 0,
        "files": "< 11",
        "reused": True,
        "dagster/partition_row_count": 20,
        "dagster/uri": "file:///a/7",
        "path": Location("/a/7"),
        "card": Markdown("< 11 patients", ready=True),
        "row": 7,
        "table": Table([{"split": "val", "rows": 30, "what": "withheld"}]),
    }


def test_no_size_next_to_a_small_count_reveals_it() -> None:
    assert CLOSED.public_entries({"notes": 3, "bytes": 400, "tokens": 90}) == {"notes": "< 11"}
    assert CLOSED.public_row({"notes": 3, "rows": 40, "bytes": 400}) == {
        "notes": "< 11",
        "rows": "withheld",
        "bytes": "withheld",
    }
    assert CLOSED.public_counts([3, 40, 0]) == ["< 11", "withheld", 0]
    assert CLOSED.public_amounts(
        {"tokens": 2_059, "bytes": 7, "seconds": 0.1, "splits": [{"split": "val", "rows": 3}]}
    ) == {
        "tokens": 2_100,
        "bytes": None,
        "seconds": None,
        "splits": [{"split": "val", "rows": "< 11"}],
    }


@pytest.mark.parametrize("before", [11, 14, 40, 99, 100, 2_059, 10_500])
def test_totals_before_and_after_a_removal_do_not_reveal_its_size(before: int) -> None:
    """The public totals before and after fit removals of ten different sizes."""
    for removed in range(1, 11):
        after = CLOSED.public_value(before - removed)
        alike = [one for one in range(max(before - 20, 0), before + 20) if CLOSED.public_value(one) == after]
        assert len(alike) >= 6, (before, removed, after)


def test_small_groups_look_alike() -> None:
    assert {CLOSED.public_count(number) for number in range(1, 11)} == {"< 11"}
    assert min(value for number in range(11, 2_000) if isinstance(value := CLOSED.public_value(number), int)) >= 11


def test_the_stricter_of_the_declared_and_the_default_threshold_applies() -> None:
    five = load_privacy(DatasetDeclaration(dataset="d", sensitive=True, small_cell=5))
    assert (five.public_count(4), five.public_count(5)) == ("< 5", "10")
    assert OPEN.choose_stricter(five) == five.choose_stricter(OPEN) == five
    assert five.choose_stricter(CLOSED).below == 11


def test_the_size_of_the_private_file_is_bounded(kept: Privacy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataprep_assets.engine.privacy._MAX_FILE_BYTES", 200)
    for number in range(20):
        kept.store_texts([f"{number} {TEXT}"])
    assert kept.file is not None
    assert kept.file.stat().st_size < 400
    assert f"19 {TEXT}" in read(kept)
    assert kept.file.with_suffix(".old").is_file()


def test_a_full_disk_hides_no_error(tmp_path: Path) -> None:
    (tmp_path / "d").write_text("a file, where the folder should be")
    privacy = load_privacy(DatasetDeclaration(dataset="d", sensitive=True), LocalArtifacts(tmp_path))
    assert privacy.public_error(DataprepError(TEXT)).startswith("DataprepError. ")
