"""TFDS can read a directory that passes the checks, and misses some defects that the checks find."""

from pathlib import Path
from typing import Any

import pytest

from dataprep_assets_tests.pipelines.notes.directories import directory, edit, prove, sealed
from dataprep_assets_tests.readers.families import TENSORFLOW


@pytest.mark.skipif(TENSORFLOW.missing is not None, reason=f"{TENSORFLOW.missing}")
def test_tfds_reads_every_row_and_ignores_a_wrong_length_with_a_right_sum(notes_root: Path) -> None:
    finding = prove(notes_root)["readable_by_tfds"]
    assert finding.passed, finding.summary
    assert finding.facts["rows_read"] == finding.facts["rows"]

    def shift(info: Any) -> None:
        lengths = info["splits"][0]["shardLengths"]
        lengths[0], lengths[-1] = str(int(lengths[0]) - 1), str(int(lengths[-1]) + 1)

    edit(directory(notes_root) / "dataset_info.json", shift)
    sealed(directory(notes_root).parents[1])
    # TFDS reads all rows without an error, because the sum of the shard lengths is still correct.
    found = prove(notes_root)
    assert found["files_intact"].passed
    assert found["readable_by_tfds"].passed
    assert not found["matches_cohort_shards"].passed
