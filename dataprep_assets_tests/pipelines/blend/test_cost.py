"""The cost of a blend is the cost of the shards in its plan."""

from pathlib import Path

import pytest

from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.blend.component import TrainingBlend
from dataprep_assets.pipelines.blend.plan.blend_plan import build_blend_plan
from dataprep_assets.pipelines.blend.plan.plan import load_blend_plan
from dataprep_assets.planning.cost import Machine
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.blend.blend_project import read_declaration

MACHINE = Machine(cores=2, bandwidth=1e6)


def test_a_pretraining_blend_has_the_shards_of_its_plan(tmp_path: Path) -> None:
    component, store = TrainingBlend(read_declaration("sample_blend_pretrain")), LocalArtifacts(tmp_path)
    with raises(ConfigError, "plan", "row counts"):
        component.cost(store, MACHINE)
    build_blend_plan(component.declaration, store)
    plan = load_blend_plan(component.declaration, store)
    found = component.cost(store, MACHINE)
    assert [split.split for split in found.cost.splits] == [unit.name for unit in plan.units]
    assert found.cost.shards == len(plan.partitions)
    assert found.cost.transfer == 0, "its sources are read in place"


@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_other_stages_have_no_plan_of_token_shards(tmp_path: Path, stage: str) -> None:
    with raises(ConfigError, "costs", "corpora, releases"):
        TrainingBlend(read_declaration(f"sample_blend_{stage}")).cost(LocalArtifacts(tmp_path), MACHINE)
