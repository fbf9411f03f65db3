"""The scale bench measures what it says, and the default plan keeps partitions in the low thousands."""

from pathlib import Path

import pytest

from dataprep_assets.planning.shard_plan import MAX_SHARDS
from dataprep_assets_tests.bench.scale import default_plan, measure, render


def test_the_default_plan_of_sixty_thousand_files_is_a_thousand_shards() -> None:
    assert 500 < default_plan(60_000) < 1_500 < MAX_SHARDS
    assert default_plan(1_000) < 20


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
