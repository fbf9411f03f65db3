"""A headless browser."""

import base64
import contextlib
import json
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from dataprep_assets_tests.servers import end, free_port, wait_until


class _RefusedError(Exception):
    """The browser reported that it cannot do something."""


class Browser:
    """A headless Chromium, controlled through its DevTools protocol."""

    def __init__(self, folder: Path) -> None:
        chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if chromium is None:
            pytest.skip("no Chromium on this machine: apt-get install chromium")
        port = free_port()
        flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
        flags += "--disable-component-update --disable-sync --hide-scrollbars --window-size=2400,1600"
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
        """Run one DevTools command, and return its result."""
        self._calls += 1
        self._socket.send(json.dumps({"id": self._calls, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=180))
            if message.get("id") == self._calls:
                if "error" in message:
                    raise _RefusedError(f"{method}: {message['error']}")
                return message["result"]

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression on the page; None while the page is changing."""
        try:
            return self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")
        except _RefusedError:
            return None

    def open(self, url: str, *texts: str) -> None:
        """Open a page and wait until it shows all the texts."""
        self.call("Page.navigate", url=url)
        self.wait_for(*texts)

    def wait_for(self, *texts: str) -> None:
        """Wait until the page shows all the texts; fail with the names of missing ones."""
        limit = time.monotonic() + 180
        while missing := [t for t in texts if t not in (self.evaluate("document.body.innerText") or "")]:
            assert time.monotonic() < limit, f"the page does not show {missing}"
            time.sleep(0.5)

    def rest(self) -> None:
        """Leave the page, because without a graphics card, drawing its animations keeps a core busy."""
        self.call("Page.navigate", url="about:blank")

    def click(self, text: str) -> None:
        """Click the innermost element with exactly this text."""
        found = f"[...document.querySelectorAll('*')].filter(e => e.textContent.trim() === {json.dumps(text)}).pop()"
        assert self.evaluate(f"{found} ? ({found}.click(), true) : false"), f"nothing on the page reads {text!r}"

    def picture(self, path: Path) -> None:
        """Write a screenshot."""
        time.sleep(1)  # the graph may still be moving
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
        assert path.stat().st_size > 10_000
