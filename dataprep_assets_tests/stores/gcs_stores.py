"""Stores on the fake Google Cloud Storage, in this process and in one that a test kills."""

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dataprep_assets.stores.gcs import GcsStore
from dataprep_assets.stores.retry import RetryPolicy
from dataprep_assets_tests.fakes.gcs_server import GcsServer

PART = 256 * 1024
FAST = RetryPolicy(attempts=4, base_seconds=0.001, max_seconds=0.002)

PROGRAM = """
    import sys
    from pathlib import Path
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage
    from dataprep_assets.stores.gcs import GcsStore
    client = storage.Client(project="project", credentials=AnonymousCredentials())
    store = GcsStore(client, "bucket", part_bytes=int(sys.argv[1]), workers=4)
"""


def store_on(client: Any, prefix: str = "", **options: Any) -> GcsStore:
    options = {"retry": FAST, "part_bytes": PART, "workers": 4, "timeout_seconds": 5.0, **options}
    return GcsStore(client, "bucket", prefix, **options)


@contextlib.contextmanager
def running(server: GcsServer, work: str, path: Path, digest: str) -> Iterator[subprocess.Popen[bytes]]:
    program = textwrap.dedent(PROGRAM) + textwrap.dedent(work)
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(PART), str(path), digest],
        env={**os.environ, "STORAGE_EMULATOR_HOST": server.endpoint},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
