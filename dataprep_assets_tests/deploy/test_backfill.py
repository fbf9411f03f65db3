"""A backfill on Postgres resumes by itself after its processes were killed, and gives the bytes of an undisturbed
build.
"""

from importlib.util import find_spec
from pathlib import Path

import pytest

from dataprep_assets.execution.pool import PROCESSES, RAY
from dataprep_assets_tests.deploy.backfill import measure_backfill
from dataprep_assets_tests.deploy.wall_time import measure_union
from dataprep_assets_tests.fakes.eager_daemon import make_eager_environment

pytest.importorskip("dagster_postgres", reason="the extra `k8s` (with dagster-postgres) is not installed")


@pytest.mark.slow
@pytest.mark.timeout(1_500)  # takes 120 s on an idle machine, and 320 s on a busy one
def test_a_backfill_survives_a_killed_worker_a_killed_run_and_a_killed_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in make_eager_environment(tmp_path / "eager").items():
        monkeypatch.setenv(name, value)
    # Kill a worker only on Ray, because with other engines the whole run ends with its worker
    # (`pipelines/corpus/test_killed_worker.py`).
    engine = RAY if find_spec("ray") else PROCESSES
    # Write enough documents that the second half takes longer than killing three processes.
    measured = measure_backfill(tmp_path, shards=60, documents=3_000, engine=engine)
    assert measured.differences == 0
    assert measured.killed is not None
    assert measured.killed.committed >= 30
    assert measured.killed.redone == 0, "what was committed is not made again"
    assert measured.runs == 3  # two batches of at most 50, and one retry
    assert 0 < measured.at_work < measured.seconds


def test_overlapping_time_at_work_counts_once() -> None:
    assert measure_union([]) == 0
    assert measure_union([(1, 2), (5, 9), (0, 3), (8, 10)]) == 8
