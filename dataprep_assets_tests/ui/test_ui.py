"""What a person sees: Dagster's own UI over the materialized sample corpus, in a real browser.

`DATAPREP_PICTURES=folder` keeps the screenshots; the README's pictures are made that way.
"""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets_tests.servers import end, free_port

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
            wait_until(lambda: answers(made), 300)
            yield made
        finally:
            end(server)


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


class Browser:
    """A headless Chromium, driven through its DevTools protocol."""

    def __init__(self, folder: Path) -> None:
        chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if chromium is None:
            pytest.skip("no Chromium on this machine: apt-get install chromium")
        port = free_port()
        flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
        flags += "--disable-component-update --disable-sync --hide-scrollbars --window-size=1600,1200"
        self.process = subprocess.Popen(
            [chromium, *flags.split(), f"--remote-debugging-port={port}", f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        pages: list[dict[str, Any]] = []

        def listed() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=5) as response:
                    pages[:] = [page for page in json.load(response) if page["type"] == "page"]
            except OSError:
                return False
            return bool(pages)

        wait_until(listed, 180)
        self._open = contextlib.ExitStack()
        page = pages[0]["webSocketDebuggerUrl"]
        self._socket = self._open.enter_context(connect(page, max_size=None, open_timeout=120, ping_interval=None))
        self._calls = 0

    def close(self) -> None:
        """End the browser."""
        self._open.close()
        end(self.process)

    def call(self, method: str, **parameters: Any) -> Any:
        """One DevTools command and its result."""
        self._calls += 1
        self._socket.send(json.dumps({"id": self._calls, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=180))
            if message.get("id") == self._calls:
                return message["result"]

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression on the page."""
        return self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def open(self, url: str, *texts: str) -> None:
        """Open a page and wait until it shows all the texts."""
        self.call("Page.navigate", url=url)
        self.wait_for(*texts)

    def wait_for(self, *texts: str) -> None:
        """Wait until the page shows all the texts; fails naming the ones that it does not."""
        limit = time.monotonic() + 180
        while missing := [t for t in texts if t not in (self.evaluate("document.body.innerText") or "")]:
            assert time.monotonic() < limit, f"the page does not show {missing}"
            time.sleep(0.5)

    def click(self, text: str) -> None:
        """Click the innermost element with exactly this text."""
        found = f"[...document.querySelectorAll('*')].filter(e => e.textContent.trim() === {json.dumps(text)}).pop()"
        assert self.evaluate(f"{found} ? ({found}.click(), true) : false"), f"nothing on the page reads {text!r}"

    def picture(self, path: Path) -> None:
        """Keep a screenshot."""
        time.sleep(1)  # the graph moves into place
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
        assert path.stat().st_size > 10_000


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


def test_the_graph_shows_every_artifact_materialized_and_checked(site: Site, browser: Browser) -> None:
    names = ("manifest", "engine_certificate", "snapshot", "token_bins", "combined_bins", "nanogpt_bins")
    url = f"{site.url}/locations/dataprep_assets/asset-groups/sample_corpus/lineage"
    browser.open(url, *names, "8 / 8 Passed", "10 / 10 Passed", "100% filled")
    browser.picture(site.pictures / "graph.png")


def test_a_partition_shows_its_numbers(site: Site, browser: Browser) -> None:
    url = f"{site.url}/assets/sample_corpus/train/token_bins?partition=train-00001&view=partitions"
    browser.open(url, "train-00002", "tokens", "documents", "tokens_per_cpu_second", "dropped", "source_bytes")
    browser.picture(site.pictures / "partitions.png")


def test_the_numbers_of_an_asset_plot(site: Site, browser: Browser) -> None:
    browser.open(f"{site.url}/assets/sample_corpus/train/token_bins?view=overview", "Plots", "tokens_per_cpu_second")

    def plotted() -> bool:
        canvases = int(browser.evaluate("document.querySelectorAll('canvas').length"))
        if not canvases:
            browser.click("Plots")  # once more where the page came anew meanwhile
        return canvases >= 4

    wait_until(plotted, 180)
    browser.picture(site.pictures / "plots.png")


def test_a_check_shows_its_table(site: Site, browser: Browser) -> None:
    url = f"{site.url}/assets/sample_corpus/train/combined_bins?view=checks&checkDetail=eye_test"
    browser.open(url, "eye_test", "bits_per_token", "Passed", "decode to plausible text")
    browser.picture(site.pictures / "eye_test.png")


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
