"""What a training machine loads with the window: NumPy; and what it may need: what a trainer has."""

import json
import pkgutil
import subprocess
import sys

import grimp

from dataprep_assets import serving

# Modules that are loaded before the script begins, by `.pth` files of the environment, are none that it brings.
SCRIPT = """
import json, sys
before = set(sys.modules)
import dataprep_assets.serving.sampler.maxtext, dataprep_assets.serving.window.templar
from dataprep_assets.serving import Release, Schedule, Shard, ShardWindow, plan_window, torch_dataset
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules.keys() - before})))
"""
EVERYWHERE = {"numpy", "pyarrow", "httpx"}
CLIENTS = {"botocore", "urllib3", "google", "google_crc32c", "requests"}
"""Clients of buckets, and what they bring; imported where a bucket is read."""
TRAINERS = {"torch", "tensorflow", "grain", "jax"}
"""What the adapters adapt to; imported in the functions that do."""


def test_importing_the_window_brings_numpy_and_nothing_else() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout))
    assert "dataprep_assets" in loaded
    assert loaded - sys.stdlib_module_names - {"dataprep_assets"} == {"numpy"}


def test_nothing_that_serving_reaches_imports_what_a_training_machine_lacks() -> None:
    """Imports inside functions included: those of a module that serving can load at any time."""
    graph = grimp.build_graph("dataprep_assets", include_external_packages=True)
    own = graph.find_descendants("dataprep_assets.serving") | {"dataprep_assets.serving"}
    reached = own.union(*(graph.find_upstream_modules(module) for module in own))
    foreign = {
        f"{importer} imports {module}"
        for module in reached
        if (root := module.partition(".")[0]) not in sys.stdlib_module_names | {"dataprep_assets"} | EVERYWHERE
        for importer in graph.find_modules_that_directly_import(module) & reached
        if root not in (CLIENTS if importer.startswith("dataprep_assets.stores.") else TRAINERS)
    }
    assert foreign == set()


def test_every_public_name_is_there() -> None:
    assert all(hasattr(serving, name) for name in serving.__all__)


ALONE = """
import importlib, os, sys
import numpy, pyarrow, httpx  # libraries that take most of a start
for name in sys.argv[1:]:
    if (child := os.fork()) == 0:
        importlib.import_module(name)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, name
"""


def test_every_module_imports_alone() -> None:
    names = [found.name for found in pkgutil.iter_modules(serving.__path__, "dataprep_assets.serving.")]
    subprocess.run([sys.executable, "-c", ALONE, *names], check=True)
