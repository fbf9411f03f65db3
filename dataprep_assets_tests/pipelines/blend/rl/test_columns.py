"""The columns that transforms declare equal those of their output records."""

from typing import Any

import pytest

from dataprep_assets.pipelines.blend.rl.rl_jsonl import infer_columns
from dataprep_assets.pipelines.blend.rl.transforms import compose_steps

RECORD = {
    "input": "a",
    "output": "b",
    "prompt": "c",
    "id": 7,
    "messages": [{"role": "user"}],
    "conversations": [{"from": "human"}],
    "responses_create_params": {"input": [{"role": "user"}], "tools": [{"name": "t"}]},
}


@pytest.mark.parametrize(
    "transforms",
    [
        ["sft"],
        [{"sft": {"system": "prompt"}}],
        ["openai_chat"],
        ["sharegpt"],
        ["nemotron_rl"],
        ["passthrough", {"select": ["messages", "id"]}],
        ["nemotron_rl", {"rename": {"conversation": "messages"}}],
    ],
)
def test_declared_columns_equal_the_output(transforms: list[Any]) -> None:
    made: Any = RECORD
    for step in compose_steps(transforms):
        made = step.transform(made)
    assert list(made) == list(infer_columns(transforms))
    for name, kind in infer_columns(transforms).items():
        assert isinstance(made[name], {"string": str, "list<object>": list, "any": object}[kind])


def test_columns_that_only_the_source_knows_are_not_declared() -> None:
    assert infer_columns(["passthrough"]) == {}
    assert infer_columns(["nemotron_rl", "my_package.my_module:my_function"]) == {}


@pytest.mark.parametrize("transforms", [["nemotron"], ["select"], [{"select": "id"}], [{"rename": ["id"]}]])
def test_transforms_that_the_plan_refuses_declare_no_columns(transforms: list[Any]) -> None:
    assert infer_columns(transforms) == {}
