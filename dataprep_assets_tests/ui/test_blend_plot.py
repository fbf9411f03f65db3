"""What a person sees of a blend's shares: the plot in Dagster's own UI, drawn by a real browser."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets_tests import forked
from dataprep_assets_tests.servers import end, free_port, wait_until
from dataprep_assets_tests.ui.browser import BIN, Browser, Site, answers

pytestmark = pytest.mark.slow
PICTURES = "[...document.querySelectorAll('img')].filter(i => i.src.startsWith('data:image/svg+xml'))"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A webserver over the finished sample blend that needs no tokenizer."""
    folder = tmp_path_factory.mktemp("site")
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(folder / "home"),
        "DATAPREP_ROOT": str(folder / "artifacts"),
        "DAGSTER_DISABLE_TELEMETRY": "yes",
    }
    command = ["-m", "dataprep_assets.cli", "run", "sample_blend_rl"]
    forked.run(command, env=environment, check=True, cwd=PROJECT_ROOT)
    port = free_port()
    with open(folder / "server.log", "wb") as log:
        server = subprocess.Popen(
            [str(BIN / "dagster-webserver"), "-w", "workspace.yaml", "-h", "127.0.0.1", "-p", str(port)],
            env=environment,
            cwd=PROJECT_ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        pictures = Path(os.environ.get("DATAPREP_PICTURES", folder))
        try:
            made = Site(f"http://127.0.0.1:{port}", folder / "artifacts", pictures)
            wait_until(lambda: answers(made), 300)
            yield made
        finally:
            end(server)


@pytest.mark.parametrize(
    ("asset", "entry"), [("blend_preview", "requested_and_realisable"), ("blend", "requested_and_realised")]
)
def test_the_shares_are_drawn(site: Site, browser: Browser, asset: str, entry: str) -> None:
    """The UI keeps markdown of this length behind a click."""
    browser.open(f"{site.url}/assets/sample_blend_rl/{asset}?view=overview", entry, "[Show Markdown]")
    rows = f"[...document.querySelectorAll('tr')].filter(r => r.innerText.includes({json.dumps(entry)}))"
    link = f"[...{rows}.pop().querySelectorAll('*')].filter(e => e.textContent.trim() === '[Show Markdown]').pop()"

    def drawn() -> bool:
        if not browser.evaluate(f"{PICTURES}.length"):
            browser.evaluate(f"{link}.click()")  # once more where the page replaced the row meanwhile
        # a browser gives a size to a picture that it could draw, and 0 to one that it could not
        return bool(browser.evaluate(f"{PICTURES}.length === 1 && {PICTURES}[0].naturalWidth > 400"))

    wait_until(drawn, 180)
    assert browser.evaluate(f"{PICTURES}[0].naturalHeight") > 100
    assert browser.evaluate(f"{PICTURES}[0].getBoundingClientRect().width") > 200
    browser.picture(site.pictures / f"{asset}_shares.png")
