"""A backfill on Postgres goes on by itself after a run and the daemon were killed, to the bytes of a quiet build."""

from pathlib import Path

import pytest

from dataprep_assets_tests.deploy.backfill import disturbed_backfill

pytest.importorskip("dagster_postgres", reason="the extra `k8s` (with dagster-postgres) is not installed")


@pytest.mark.slow
def test_a_backfill_survives_a_killed_run_and_a_killed_daemon(tmp_path: Path) -> None:
    measured = disturbed_backfill(tmp_path, shards=60, files=60)
    assert measured.differences == 0
    assert measured.committed_at_kill >= 30
    assert measured.runs == 3  # two batches of at most 50, and one retry
