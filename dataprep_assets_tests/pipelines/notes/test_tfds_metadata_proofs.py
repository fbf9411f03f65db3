"""Proofs on a directory's own files find what is planted; and TFDS reads what passes them."""

from pathlib import Path
from typing import Any

import pytest

from dataprep_assets_tests.pipelines.notes.directories import directory, edit, failed, prove
from dataprep_assets_tests.readers.families import TENSORFLOW


@pytest.mark.usefixtures("without_tensorflow")
def test_a_missing_shard_and_one_of_another_total_are_named(notes_root: Path) -> None:
    where = directory(notes_root)
    lost = where / next(name for name in sorted(path.name for path in where.iterdir()) if "train" in name)
    lost.rename(where / "sample_notes-train.tfrecord-00000-of-00077")
    found = prove(notes_root)
    assert {"files_intact", "names_complete", "shard_lengths_counted", "num_bytes_counted"} <= failed(found)
    assert lost.name in found["names_complete"].summary
    assert "of-00077" in str(found["names_complete"].table)


@pytest.mark.usefixtures("without_tensorflow")
def test_a_wrong_version_or_name_inside_the_metadata_is_told(notes_root: Path) -> None:
    edit(directory(notes_root) / "dataset_info.json", lambda info: info.update(name="other", version="2.0.0"))
    assert "says name other, declared is sample_notes" in prove(notes_root)["names_complete"].summary


def test_metadata_that_tfds_refuses_fail_what_needs_them(notes_root: Path) -> None:
    edit(directory(notes_root) / "dataset_info.json", lambda info: info.update(strange=1))
    assert {"names_complete", "shard_lengths_counted", "num_bytes_counted", "features_match"} <= failed(
        prove(notes_root)
    )


@pytest.mark.skipif(TENSORFLOW.missing is not None, reason=f"{TENSORFLOW.missing}")
def test_tfds_reads_every_row_and_does_not_notice_a_wrong_length_with_a_right_sum(notes_root: Path) -> None:
    finding = prove(notes_root)["tfds_reads"]
    assert finding.passed, finding.summary
    assert finding.facts["rows_read"] == finding.facts["rows"]

    def shift(info: Any) -> None:
        lengths = info["splits"][0]["shardLengths"]
        lengths[0], lengths[-1] = str(int(lengths[0]) - 1), str(int(lengths[-1]) + 1)

    edit(directory(notes_root) / "dataset_info.json", shift)
    # with a right sum TFDS reads all rows as if nothing were wrong: it is the count of each shard that tells
    found = prove(notes_root)
    assert found["tfds_reads"].passed
    assert not found["shard_lengths_counted"].passed
