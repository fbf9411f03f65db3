"""The scale benchmark measures correctly, and the default plan keeps the number of partitions in the low thousands."""

from dataclasses import replace
from pathlib import Path

import pytest

from dataprep_assets.planning.manifest import MAX_SHARDS
from dataprep_assets_tests.tools.bench.planned_files import planned, planned_here
from dataprep_assets_tests.tools.bench.scale import default_plan, measure, render, told


def test_the_default_plan_of_sixty_thousand_files_has_a_thousand_shards() -> None:
    assert 500 < default_plan(60_000) < 1_500 < MAX_SHARDS
    assert default_plan(1_000) < 20


def test_names_and_sizes_are_planned_in_a_separate_process_and_compared_with_the_targets() -> None:
    found = planned(2_000)
    assert found.digest == planned_here(2_000).digest != planned_here(2_001).digest
    assert set(found.steps) == {"entries", "plan", "digest", "files"}
    assert 10 < found.megabytes < 500
    assert told(found).startswith("2,000 names and sizes planned: ")
    assert told(found).count(": met") == 2
    assert ": not met" in told(replace(found, megabytes=1_001.0))


@pytest.mark.slow
def test_a_small_corpus_is_measured_on_every_storage(tmp_path: Path) -> None:
    pytest.importorskip("dagster_postgres", reason="needs the extra k8s")
    found = measure(tmp_path, files=12, shards=4, runs=1)
    assert (found.files, found.shards) == (12, 4)
    for kept in filter(None, (found.sqlite, found.postgres)):
        assert kept.bytes_a_partition > 0
        assert kept.ms_a_partition > 0
        assert kept.view > 0
    assert "| 12 | 4 |" in render([found])
