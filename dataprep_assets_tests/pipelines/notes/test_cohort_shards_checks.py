"""Checks of the shards of a cohort pass in both formats and layouts, and find what is planted."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.engine.checks.verdicts import find_all
from dataprep_assets.formats.tensorflow import array_record, tfrecord
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.notes.cohorts.cohort_shards import SHARD_CHECKS, open_shards, plan_sharded_cohorts
from dataprep_assets.pipelines.notes.cohorts.sharded_cohort import COHORT_SHARDS, ShardedCohort
from dataprep_assets.pipelines.notes.declaration import FileFormat
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.notes.pipeline import declaration, run_notes

pytest.importorskip("array_record", reason="both formats are proven: install the extra tfds")
MONTH = "2010-12"
FORMATS: tuple[FileFormat, ...] = ("tfrecord", "array_record")


def sharded(root: Path, format: FileFormat, layout: str = "prepacked") -> ShardedCohort:
    """The shards of a month, made below a root."""
    # Use grain for ArrayRecord, because the tfds pipeline reads only TFRecord.
    pipeline = "grain" if format == "array_record" else "tfds"
    notes = declaration(layout=layout, formats=[format], pipeline=pipeline)
    assert not run_notes(notes, root).failed
    (cohort,) = plan_sharded_cohorts(notes, LocalArtifacts(root), [MONTH], format)
    return cohort


def prove(cohort: ShardedCohort) -> dict[str, Finding]:
    return find_all(SHARD_CHECKS, open_shards, None, cohort)


def failed(found: dict[str, Finding]) -> set[str]:
    return {name for name, finding in found.items() if not finding.passed}


def shard(cohort: ShardedCohort, at: int = 0) -> Path:
    where = cohort.store.directory(cohort.artifact)
    return sorted(path for path in where.iterdir() if path.suffix in (".tfrecords", ".array_record"))[at]


def rewrite(cohort: ShardedCohort, change: Callable[[list[bytes]], list[bytes]], at: int = 0) -> None:
    path = shard(cohort, at)
    if cohort.format == "tfrecord":
        payloads = change([record.payload for record in tfrecord.read_records(path)])
        path.unlink()
        tfrecord.write(path, payloads)
    else:
        payloads = change(list(array_record.read_records(path)))
        path.unlink()
        array_record.write(path, payloads)


@pytest.mark.parametrize("layout", ["prepacked", "unpacked"])
@pytest.mark.parametrize("format", FORMATS)
def test_every_proof_passes_on_what_was_made(format: FileFormat, layout: str, tmp_path: Path) -> None:
    found = prove(sharded(tmp_path, format, layout))
    assert list(found) == [check.name for check in SHARD_CHECKS]
    assert failed(found) == set()
    assert found["matches_packed_rows"].facts["rows"] == found["records_intact"].facts["records"] != 0


@pytest.mark.parametrize("format", FORMATS)
def test_rows_in_another_order_are_not_those_that_were_packed(format: FileFormat, tmp_path: Path) -> None:
    cohort = sharded(tmp_path, format)
    rewrite(cohort, lambda payloads: payloads[::-1])
    found = prove(cohort)
    assert failed(found) == {"files_intact", "matches_packed_rows"}
    assert_names(found["matches_packed_rows"].summary, "packed_cohorts")


@pytest.mark.parametrize("format", FORMATS)
def test_a_shard_that_lost_its_last_record_is_whole_to_a_reader_and_found_by_its_count(
    format: FileFormat, tmp_path: Path
) -> None:
    cohort = sharded(tmp_path, format)
    rewrite(cohort, lambda payloads: payloads[:-1])
    found = prove(cohort)
    assert "has 7 records with " in found["records_intact"].summary
    assert any("7 rows, but with `rows_per_shard: 8`" in str(row) for row in found["records_intact"].table)
    assert not found["matches_packed_rows"].passed


@pytest.mark.parametrize("format", FORMATS)
def test_rows_that_moved_to_the_next_shard_are_found_though_the_sum_is_right(
    format: FileFormat, tmp_path: Path
) -> None:
    cohort = sharded(tmp_path, format)
    moved: list[bytes] = []

    def take(payloads: list[bytes]) -> list[bytes]:
        moved.append(payloads[-1])
        return payloads[:-1]

    rewrite(cohort, take)
    rewrite(cohort, lambda payloads: [moved[0], *payloads], at=1)
    found = prove(cohort)
    assert "records_intact" in failed(found)


@pytest.mark.parametrize("format", FORMATS)
def test_a_flipped_bit_and_a_cut_file_break_records_and_leave_no_row_proven(format: FileFormat, tmp_path: Path) -> None:
    cohort = sharded(tmp_path, format)
    path = shard(cohort)
    good = path.read_bytes()
    at = good.find(b"inputs") if format == "tfrecord" else 1000
    for bad in (good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :], good[: len(good) // 2]):
        path.write_bytes(bad)
        found = prove(cohort)
        assert {"files_intact", "records_intact", "matches_packed_rows"} <= failed(found)


def test_shards_of_older_rows_and_missing_rows_are_told(tmp_path: Path) -> None:
    cohort = sharded(tmp_path, "tfrecord")
    (cohort.store.directory(cohort.packed) / "receipt.json").unlink()
    found = prove(cohort)
    assert failed(found) == {check.name for check in SHARD_CHECKS}
    assert COHORT_SHARDS["tfrecord"] == cohort.artifact.name
    assert "packed_cohorts" in found["matches_packed_rows"].summary
