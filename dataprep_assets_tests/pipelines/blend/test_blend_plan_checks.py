"""The checks of a blend's plan pass on a good plan and fail on each of its defects."""

from dataclasses import replace
from pathlib import Path

import pytest

from dataprep_assets.errors import FormatError
from dataprep_assets.pipelines.blend.plan.blend_plan import CHECKS, plan_covers_sources, plan_is_current
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan, load_blend_plan
from dataprep_assets.sources.readers.read_options import RowRange
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.blend.finished_blend import FinishedBlend
from dataprep_assets_tests.pipelines.blend.pipeline import make_texts, write_rows


def _with_parts(plan: BlendPlan, shard: int, rows: RowRange | None) -> BlendPlan:
    """Return the plan with another range in one shard of `web`, or without the shard's part."""
    unit = plan.units[1]
    old = unit.shards[shard]
    parts = tuple(replace(p, rows=rows) for p in old.parts) if rows else ()
    shards = [replace(old, parts=parts) if s is old else s for s in unit.shards]
    return replace(plan, units=(plan.units[0], replace(unit, shards=tuple(shards))))


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (RowRange(15, 41), "in two shards"),
        (RowRange(25, 41), "rows 21 to 24"),
        (RowRange(21, 35), "rows 35 to 40"),
        (None, "rows 21 to 40"),
    ],
)
def test_duplicate_and_missing_rows_are_found(good: FinishedBlend, rows: RowRange | None, complaint: str) -> None:
    finding = plan_covers_sources(_with_parts(good.plan, 1, rows))
    assert not finding.passed
    assert complaint in finding.summary


def test_duplicate_and_missing_files_and_shard_index_gaps_are_found(good: FinishedBlend) -> None:
    unit = good.plan.units[1]
    missing = replace(unit, shards=())
    twice = replace(unit, shards=(unit.shards[0], *unit.shards))
    gap = replace(unit, shards=(unit.shards[0], *(replace(s, index=s.index + 1) for s in unit.shards[1:])))
    for broken, complaint in ((missing, "in no shard"), (twice, "two shards"), (gap, "numbered 0, 2, 3,")):
        finding = plan_covers_sources(replace(good.plan, units=(broken,)))
        assert not finding.passed
        assert complaint in " ".join(str(row["defect"]) for row in finding.table)


def test_a_changed_source_gives_another_plan(good: FinishedBlend, tmp_path: Path) -> None:
    write_rows(tmp_path / "s" / "web" / "train-00000.parquet", make_texts("web", 61))
    finding = plan_is_current(good.blend, good.store)
    assert not finding.passed
    assert finding.summary.startswith("web: the plan hash was ")


def test_an_unreadable_plan_is_a_finding(good: FinishedBlend) -> None:
    path = good.store.directory(good.blend.artifact("blend_plan")) / "plan.json"
    path.write_text("{}")
    assert [check.run((good.blend, good.store)).passed for check in CHECKS] == [False, False]
    with raises(FormatError, path):
        load_blend_plan(good.blend, good.store)
