"""A training machine imports the window and gets neither Dagster nor TensorFlow nor torch."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, sys
import dataprep_assets.serving.maxtext, dataprep_assets.serving.templar
from dataprep_assets.serving import Release, Schedule, Shard, ShardWindow, plan_window, torch_dataset
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def test_importing_the_window_brings_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert "dataprep_assets" in loaded
    heavy = {
        "dagster",
        "tensorflow",
        "torch",
        "jax",
        "grain",
        "boto3",
        "botocore",
        "google",
        "transformers",
        "pandas",
        "pyarrow",
    }
    assert not loaded & (heavy | {"pydantic", "httpx", "huggingface_hub", "tokenizers"})


def test_every_public_name_is_there() -> None:
    import dataprep_assets.serving as serving

    assert all(hasattr(serving, name) for name in serving.__all__)


@pytest.mark.parametrize(
    "name",
    [
        "schedule",
        "keep",
        "plan",
        "release",
        "readers",
        "cache",
        "shared_state",
        "kept_manifest",
        "events",
        "shard_window",
        "maxtext",
        "templar",
    ],
)
def test_every_module_imports_alone(name: str) -> None:
    subprocess.run([sys.executable, "-c", f"import dataprep_assets.serving.{name}"], check=True)
