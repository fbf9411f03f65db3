"""A training machine that has NumPy, pyarrow and httpx: installed there as the page says, serving reads releases.

The environment is a real one, without Dagster, pydantic, tokenizers or a client of a bucket; nothing is fetched.
"""

import json
import os
import pkgutil
import re
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from dataprep_assets import serving
from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets.serving.window.release import MANIFEST, ReleaseLocation
from dataprep_assets.stores.local import LocalStore
from dataprep_assets_tests import fresh_environment
from dataprep_assets_tests.docs.run_blocks import blocks
from dataprep_assets_tests.fakes.hub_server import HubServer
from dataprep_assets_tests.serving.releases import make_release, publish, tokens_of

pytestmark = pytest.mark.slow
PAGE = PROJECT_ROOT / "docs" / "pipelines" / "release.md"
WHERE_THE_PAGE_HAS_IT = ".dataprep/sample_release_published"
SHARDS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a published release."""
    here = tmp_path_factory.mktemp("trainer")
    release = make_release(here / "built", (8,) * SHARDS)
    publish(release, here / "built", ReleaseLocation(LocalStore(here / WHERE_THE_PAGE_HAS_IT)))
    return here


@pytest.fixture(scope="module")
def web(folder: Path) -> Iterator[HubServer]:
    """A web server with the same release."""
    root = folder / WHERE_THE_PAGE_HAS_IT
    tree = {f"v1/{path.relative_to(root)}": path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert f"v1/{MANIFEST}" in tree
    with HubServer(tree, repo_id="someone/shards") as server:
        yield server


@pytest.fixture(scope="module")
def programs(folder: Path) -> Path:
    """An environment made by the page's two commands, but that what the first would fetch is linked."""
    text = PAGE.read_text(encoding="utf-8")
    first, second = (line.partition("  #")[0].split() for line in re.findall(r"^pip install .*", text, re.MULTILINE))
    wanted = [Requirement(word.strip("'")) for word in first[2:]]
    declared = {found.name: found.specifier for found in map(Requirement, requires("dataprep-assets") or [])}
    assert {each.name: each.specifier for each in wanted} == {each.name: declared[each.name] for each in wanted}
    made = fresh_environment.environment(folder / "environment", map(str, wanted))
    assert second == ["pip", "install", "--no-deps", "dataprep-assets"]
    (folder / "wheel").mkdir()
    fresh_environment.pip_install(made, ["--no-deps", fresh_environment.build_wheel(folder / "wheel")])
    return made


def run(programs: Path, folder: Path, script: str, **variables: str) -> str:
    """What a script prints in that environment; its working folder is `folder`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DATAPREP_", "PYTHON", "R2_"))}
    command = [programs / "python", "-c", script]
    done = subprocess.run(command, cwd=folder, env=kept | variables, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_module_of_serving_imports_there(programs: Path, folder: Path) -> None:
    modules = [found.name for found in pkgutil.iter_modules(serving.__path__)]
    script = f"""
import importlib, importlib.util, json, sys
for name in {modules}:
    importlib.import_module(f"dataprep_assets.serving.{{name}}")
import dataprep_assets.stores.http
absent = [name for name in ("dagster", "pydantic", "transformers", "boto3") if importlib.util.find_spec(name) is None]
print(json.dumps([dataprep_assets.stores.http.__file__, absent]))
"""
    at, absent = json.loads(run(programs, folder, script))
    assert at.startswith(str(folder / "environment"))
    assert absent == ["dagster", "pydantic", "transformers", "boto3"]


def test_the_window_of_the_page_reads_a_folder_there(programs: Path, folder: Path) -> None:
    assert "never waits" in run(programs, folder, blocks(PAGE)[0])


WINDOW = """
import hashlib, json, sys
from dataprep_assets.serving import ShardWindow, WindowState

def read(window, steps):
    return [hashlib.sha256(window.swap(step).tokens.tobytes()).hexdigest() for step in steps]

with ShardWindow(URL, CACHE, steps_per_shard=1, keep=2) as window:
    found = read(window, (0, 1))
    state = window.state(2).to_json()
with ShardWindow(URL, CACHE, steps_per_shard=1, keep=2) as window:
    step = window.restore(WindowState.from_json(state))
    found += read(window, (step, step + 1))
print(json.dumps(found))
"""


@pytest.mark.parametrize("kind", ["folder", "web", "hub"])
def test_the_tokens_are_those_that_were_published(programs: Path, folder: Path, web: HubServer, kind: str) -> None:
    url = {
        "folder": WHERE_THE_PAGE_HAS_IT,
        "web": f"{web.endpoint}/datasets/someone/shards/resolve/main/v1",
        "hub": "hf://datasets/someone/shards@main/v1",
    }[kind]
    out = run(programs, folder, f"URL, CACHE = {url!r}, 'cache_{kind}'\n{WINDOW}", HF_ENDPOINT=web.endpoint)
    digests = [sha256(tokens_of(step % SHARDS, 8).tobytes()).hexdigest() for step in range(4)]
    assert json.loads(out) == digests


def test_what_is_not_there_says_what_to_install(programs: Path, folder: Path) -> None:
    out = run(
        programs,
        folder,
        f"""
from dataprep_assets.errors import ConfigError
from dataprep_assets.serving import ShardWindow, torch_dataset
for url in ("s3://bucket/prefix", "gs://bucket/prefix"):
    try:
        ShardWindow(url, "cache", 1)
    except ConfigError as error:
        print(error)
with ShardWindow({WHERE_THE_PAGE_HAS_IT!r}, "cache", 1) as window:
    try:
        torch_dataset(window.swap(0))
    except ConfigError as error:
        print(error)
""",
    )
    said = [re.findall(r"pip install ([a-z0-9 -]+)", line) for line in out.splitlines()]
    assert said == [["boto3"], ["google-cloud-storage requests"], ["torch"]]
