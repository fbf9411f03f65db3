"""Run the sample blends through Dagster in a separate process, which a test may kill.

`python -m dataprep_assets_tests.pipelines.blend.blend_project STAGE ROOT` materializes every step of a sample blend
below ROOT; its exit code is 1 when a run fails.
"""

import sys
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from dataprep_assets.cli.support.project import find_dataset_folder
from dataprep_assets.engine.artifact.dataset import validate_declaration
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets_tests.pipelines.blend.dagster_blend import open_blend

STAGES = ("pretrain", "sft", "pairs", "rl")


def read_declaration(name: str) -> BlendDeclaration:
    """Return the declaration of a dataset of this project."""
    path = find_dataset_folder(name) / "defs.yaml"
    return validate_declaration(BlendDeclaration, yaml.safe_load(path.read_text())["attributes"], path)


def load_sample_blend(stage: str) -> BlendDeclaration:
    """Return a sample blend as shipped, except for one worker and the reference engine, which needs no
    certification.
    """
    declaration = read_declaration(f"sample_blend_{stage}")
    changes: dict[str, object] = {"workers": 1}
    if declaration.tokenizer is not None:
        changes["tokenizer"] = declaration.tokenizer.model_copy(update={"engine": "tokenizers"})
    return declaration.model_copy(update=changes)


def main(arguments: list[str]) -> int:
    """Materialize a sample blend."""
    stage, root = arguments
    with open_blend(load_sample_blend(stage), Path(root)) as made:
        return int(not made.run_all()[-1].success)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
