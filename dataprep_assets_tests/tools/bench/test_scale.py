"""The default plan keeps the number of partitions in the low thousands, and planning is measured in its own process."""

from dataclasses import replace

from dataprep_assets.planning.manifest import MAX_SHARDS
from dataprep_assets_tests.tools.bench.planned_files import planned, planned_here
from dataprep_assets_tests.tools.bench.scale import default_plan, told


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
