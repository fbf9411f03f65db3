"""On a training machine the window loads only NumPy, and optional modules need only a trainer's packages."""

import json
import pkgutil
import subprocess
import sys

import grimp

from dataprep_assets import serving

# Exclude modules that `.pth` files of the environment load before the script starts.
SCRIPT = """
import json, sys
before = set(sys.modules)
import dataprep_assets.serving.sampler.maxtext, dataprep_assets.serving.window.templar
from dataprep_assets.serving import Release, Schedule, Shard, ShardWindow, plan_window, torch_dataset
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules.keys() - before})))
"""
EVERYWHERE = {"numpy", "pyarrow", "httpx"}
CLIENTS = {"botocore", "urllib3", "google", "google_crc32c", "requests"}
"""Clients of buckets and their dependencies, imported only to read a bucket."""
TRAINERS = {"torch", "tensorflow", "grain", "jax"}
"""Libraries that the adapters support, imported inside of their functions."""


def test_importing_the_window_loads_only_numpy() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout))
    assert "dataprep_assets" in loaded
    assert loaded - sys.stdlib_module_names - {"dataprep_assets"} == {"numpy"}


def test_serving_imports_nothing_that_a_training_machine_lacks() -> None:
    """Includes imports inside functions, in every module that serving can load at any time."""
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


def test_every_public_name_exists() -> None:
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


def test_every_module_can_be_imported_by_itself() -> None:
    names = [found.name for found in pkgutil.iter_modules(serving.__path__, "dataprep_assets.serving.")]
    subprocess.run([sys.executable, "-c", ALONE, *names], check=True)
