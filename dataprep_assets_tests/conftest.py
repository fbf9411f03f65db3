"""Fixtures for every test: the shared data, the S3 servers that all tests share, and storage locations on them."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import settings

from dataprep_assets_tests.fakes.moto_server import run_moto_server
from dataprep_assets_tests.fakes.places import Places, open_places
from dataprep_assets_tests.fakes.swift_server import SwiftServer, run_swift_server
from dataprep_assets_tests.forked import fork_workers
from dataprep_assets_tests.session.storages import keep_what_storages_make

CHECKOUT = Path(__file__).parent.parent

# The profile gives the same examples in every run. It sets no deadlines, because a busy machine would miss them.
settings.load_profile("ci")

# Restore the handler of Ctrl-C, because a shell starts background jobs (`&`) with Ctrl-C ignored, and child processes
# would inherit this setting.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Change two defaults of Ray. Ray starts its workers with a niceness of 15, so they would hardly run next to other
# tests. Ray also keeps only one idle worker per CPU of a node, so two runs on a node with one CPU would start a process
# for each task.
os.environ |= {"RAY_worker_niceness": "0", "RAY_num_workers_soft_limit": "8"}

fork_workers()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    keep_what_storages_make()
    _forget_instance()


def _forget_instance() -> None:
    """Make Dagster forget the instance of an earlier test: no component of ours has state in it.

    `DagsterInstance.__enter__` (1.13.27) stores the instance from which component state is loaded, and the end of an
    instance restores the previous one. An instance that was entered twice or is collected late therefore leaves a dead
    one behind, possibly in the middle of a test; every later load of components then fails.
    """
    if (module := sys.modules.get("dagster._core.storage.defs_state.base")) is not None:
        module.set_defs_state_storage = nullcontext
        module._current_storage.set(None)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder `../shared` next to the checkout, or DATAPREP_SHARED; skip the test if it is missing."""
    folder = Path(os.environ.get("DATAPREP_SHARED") or CHECKOUT.parent / "shared")
    if not (folder / "data" / "corpus").is_dir():
        pytest.skip(f"no shared data: {folder}/data/corpus is not there; set DATAPREP_SHARED to a folder that has it")
    return folder


@pytest.fixture(scope="session")
def swift(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwiftServer]:
    """Return a running OpenStack Swift; `buckets.new_bucket` creates buckets in it."""
    pytest.importorskip("swift", reason="no OpenStack Swift: pip install swift setuptools")
    with run_swift_server(tmp_path_factory.mktemp("swift")) as server:
        yield server


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    """Return the URL of a running moto server, for features that Swift lacks."""
    with run_moto_server() as url:
        yield url


@pytest.fixture(scope="module")
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """Yield storage locations: folders, buckets on S3 servers (each started once) and a fake Google Cloud Storage."""

    def s3(kind: str) -> str:
        server: str | SwiftServer = request.getfixturevalue(kind)
        return server.url if isinstance(server, SwiftServer) else server

    with open_places(tmp_path_factory.mktemp("servers"), s3) as found:
        yield found
