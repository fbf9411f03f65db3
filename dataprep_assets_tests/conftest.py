"""Fixtures for every test: where the shared data lies, the S3 servers that all tests share, and places on them."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import settings

from dataprep_assets_tests.fakes.moto_server import moto_server
from dataprep_assets_tests.fakes.places import Places, places
from dataprep_assets_tests.fakes.swift_server import SwiftServer, swift_server
from dataprep_assets_tests.session.storages import keep_what_storages_make

CHECKOUT = Path(__file__).parent.parent

# no deadlines, which a busy machine misses, and the same examples every time
settings.load_profile("ci")

# a shell may have started the tests with Ctrl-C ignored (`&`), and what they start would inherit that
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Ray starts its workers with a niceness of 15, and beside other tests they would hardly run. It keeps one idle worker
# for each CPU of a node, so that two runs on a node of one CPU would start a process for each task
os.environ |= {"RAY_worker_niceness": "0", "RAY_num_workers_soft_limit": "8"}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    keep_what_storages_make()
    _forget_instance()


def _forget_instance() -> None:
    """Let Dagster forget the instance of an earlier test, and remember none: no component of ours has state in it.

    `DagsterInstance.__enter__` (1.13.27) notes whose state components are loaded from, and the end of an instance notes
    the one before it. An instance that was entered twice, or is collected late, so leaves a dead one behind, which may
    be in the middle of a test: whatever loads components then fails.
    """
    if (module := sys.modules.get("dagster._core.storage.defs_state.base")) is not None:
        module.set_defs_state_storage = nullcontext
        module._current_storage.set(None)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder `../shared` beside the checkout, or DATAPREP_SHARED; the test is skipped without it."""
    folder = Path(os.environ.get("DATAPREP_SHARED") or CHECKOUT.parent / "shared")
    if not (folder / "data" / "corpus").is_dir():
        pytest.skip(f"no shared data: {folder}/data/corpus is not there; set DATAPREP_SHARED to a folder that has it")
    return folder


@pytest.fixture(scope="session")
def swift(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwiftServer]:
    """A running OpenStack Swift; its buckets are `buckets.new_bucket`'s."""
    pytest.importorskip("swift", reason="no OpenStack Swift: pip install swift setuptools")
    with swift_server(tmp_path_factory.mktemp("swift")) as server:
        yield server


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    """The URL of a running moto server, for what Swift lacks."""
    with moto_server() as url:
        yield url


@pytest.fixture(scope="module")
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """A folder, S3 servers and a fake Google Cloud Storage, in which places are made. S3 servers are started once."""

    def s3(kind: str) -> str:
        server: str | SwiftServer = request.getfixturevalue(kind)
        return server.url if isinstance(server, SwiftServer) else server

    with places(tmp_path_factory.mktemp("servers"), s3) as found:
        yield found
