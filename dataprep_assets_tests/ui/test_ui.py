"""What a person sees: Dagster's own UI over the materialized sample corpus, in a real browser.

`DATAPREP_PICTURES=folder` keeps the screenshots; the README's pictures are made that way.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.definitions import PROJECT_ROOT

pytestmark = pytest.mark.slow
BIN = Path(sys.executable).parent


@dataclass
class Site:
    """A running webserver and daemon over a finished sample corpus."""

    url: str
    root: Path
    pictures: Path

    def query(self, text: str, **variables: Any) -> Any:
        """The data of a GraphQL query or mutation, as the UI sends them."""
        request = urllib.request.Request(
            f"{self.url}/graphql",
            json.dumps({"query": text, "variables": variables}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            value = json.load(response)
        assert "errors" not in value, value["errors"]
        return value["data"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(folder / "home"),
        "DATAPREP_ROOT": str(folder / "artifacts"),
        "DAGSTER_DISABLE_TELEMETRY": "yes",
    }
    subprocess.run(
        [sys.executable, "-m", "dataprep_assets.cli", "run", "sample_corpus"],
        env=environment,
        check=True,
        cwd=PROJECT_ROOT,
        timeout=300,
    )
    port = free_port()
    with open(folder / "server.log", "wb") as log:
        server = subprocess.Popen(
            [str(BIN / "dagster"), "dev", "-w", "workspace.yaml", "-h", "127.0.0.1", "-p", str(port)],
            env=environment,
            cwd=PROJECT_ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            made = Site(
                f"http://127.0.0.1:{port}", folder / "artifacts", Path(os.environ.get("DATAPREP_PICTURES", folder))
            )
            wait_until(lambda: answers(made), 120)
            yield made
        finally:
            server.terminate()
            server.wait(60)


def answers(made: Site) -> bool:
    try:
        nodes = made.query("{ assetNodes { assetKey { path } } }")["assetNodes"]
    except OSError:
        return False
    return bool(nodes)


def wait_until(condition: Any, seconds: float) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "timed out"
        time.sleep(1)


def open_page(made: Site, path: str, picture: str, tmp_path: Path, height: int = 1000) -> str:
    """The page's document after its scripts have run; its picture is kept under `picture`."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--window-size=1600,{height}",
        "--hide-scrollbars",
        "--virtual-time-budget=20000",
    ]
    for number, output in enumerate(([f"--screenshot={made.pictures / picture}"], ["--dump-dom"])):
        done = subprocess.run(
            [chromium, *flags, f"--user-data-dir={tmp_path / str(number)}", *output, made.url + path],
            capture_output=True,
            text=True,
            timeout=180,
            check=True,
        )
    assert (made.pictures / picture).stat().st_size > 10_000
    return done.stdout


def test_the_graph_shows_every_artifact_materialized_and_checked(site: Site, tmp_path: Path) -> None:
    page = open_page(site, "/locations/dataprep_assets/asset-groups/sample_corpus/lineage", "graph.png", tmp_path)
    for name in ("manifest", "engine_certificate", "snapshot", "token_bins", "combined_bins", "nanogpt_bins"):
        assert f">{name}<" in page or name in page, name
    assert "8 / 8 Passed" in page
    assert "100% filled" in page


def test_partitions_have_numbers_that_plot(site: Site, tmp_path: Path) -> None:
    page = open_page(
        site, "/assets/sample_corpus/train/token_bins?partition=train-00001&view=partitions", "partitions.png", tmp_path
    )
    assert "train-00002" in page
    for label in ("tokens", "documents", "tokens_per_cpu_second"):
        assert label in page, label


def test_a_check_shows_its_table(site: Site, tmp_path: Path) -> None:
    page = open_page(
        site,
        "/assets/sample_corpus/train/combined_bins?view=checks&checkDetail=eye_test",
        "eye_test.png",
        tmp_path,
        1300,
    )
    assert "eye_test" in page
    assert "bits_per_token" in page
    assert "Passed" in page


BACKFILL = """mutation($keys: [AssetKeyInput!]!, $shards: [String!]!) {
  launchPartitionBackfill(backfillParams: {assetSelection: $keys, partitionNames: $shards}) {
    __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""


def test_a_backfill_from_the_ui_rebuilds_the_deleted_shard_alone(site: Site) -> None:
    shards = [f"train-{i:05d}" for i in range(3)]
    files = {s: site.root / "sample_corpus" / "token_bins" / s / "tokens.bin" for s in shards}
    before = {s: path.stat().st_ino for s, path in files.items()}
    content = files[shards[1]].read_bytes()
    files[shards[1]].unlink()
    keys = [{"path": ["sample_corpus", "train", name]} for name in ("snapshot", "token_bins")]
    launched = site.query(BACKFILL, keys=keys, shards=shards)["launchPartitionBackfill"]
    assert launched["__typename"] == "LaunchBackfillSuccess", launched
    status = """query($id: String!) { partitionBackfillOrError(backfillId: $id) {
      ... on PartitionBackfill { status numPartitions runs(limit: 50) { status } } } }"""

    def finished() -> bool:
        found = site.query(status, id=launched["backfillId"])["partitionBackfillOrError"]
        assert "FAIL" not in found["status"], found
        return bool(found["status"] == "COMPLETED_SUCCESS")

    wait_until(finished, 300)
    runs = site.query(status, id=launched["backfillId"])["partitionBackfillOrError"]["runs"]
    assert len(runs) == 1, "three shards fit one run"
    assert files[shards[1]].read_bytes() == content
    assert {s for s in shards if files[s].stat().st_ino != before[s]} <= {shards[1]}
