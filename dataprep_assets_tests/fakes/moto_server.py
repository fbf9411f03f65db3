"""Run moto in its own process: an S3 server that verifies neither digests nor credentials, for features that Swift
lacks.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import URLError
from urllib.request import urlopen

from dataprep_assets_tests.servers import end, free_port

# Replace two functions, because moto would otherwise list its own hundreds of folders at its start, and write a colored
# log line for each request, which takes a fifth of the server's time.
_PROGRAM = """
from moto import backends, server
modules = tuple(backends.list_of_moto_modules())
backends.list_of_moto_modules = lambda: modules
server.MotoRequestHandler.log_request = lambda *_: None
server.main()
"""


@contextmanager
def run_moto_server() -> Iterator[str]:
    """Run a moto server and yield its URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "no_proxy": "127.0.0.1"},
    )
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                urlopen(f"{url}/moto-api/", timeout=5).close()
                break
            except (URLError, OSError):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("moto_server did not start; pip install 'moto[server]'") from None
                time.sleep(0.1)
        yield url
    finally:
        end(process, 10)
