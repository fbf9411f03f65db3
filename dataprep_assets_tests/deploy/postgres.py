"""A real Postgres on the loopback interface, in its own folder, run by a user without privileges."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dataprep_assets_tests.servers import free_port

_NOBODY = 65534
NAME, PASSWORD = "dagster", "only-for-tests"


def find_binaries() -> Path | None:
    """Return the folder of `initdb` and `postgres`; None if this machine has none."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parent.parent.name))
    return versions[-1].parent if versions else None


@contextmanager
def run_postgres() -> Iterator[dict[str, str]]:
    """Start a server, create the database `dagster`, and yield the variables that `deploy/compose/dagster.yaml` reads.

    Skips the test if the binaries are not installed.
    """
    if (folder := find_binaries()) is None:
        pytest.skip("no Postgres: initdb is neither on PATH nor below /usr/lib/postgresql")
    identity = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    # Do not use pytest's own folders, because the server's user cannot read them.
    with tempfile.TemporaryDirectory(prefix="dataprep-pg-", ignore_cleanup_errors=True) as home:
        data, secret = Path(home, "data"), Path(home, "password")
        secret.write_text(PASSWORD)
        for path in (Path(home), secret):
            if identity:
                os.chown(path, _NOBODY, _NOBODY)
        initdb = [folder / "initdb", "-D", data, "-U", NAME, "--auth=scram-sha-256", f"--pwfile={secret}", "-N"]
        subprocess.run(initdb, check=True, capture_output=True, cwd=home, **identity)  # type: ignore[call-overload]
        port = free_port()
        command = [folder / "postgres", "-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", home]
        with open(Path(home, "log"), "wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, cwd=home, **identity)  # type: ignore[call-overload]
        try:
            environment = {
                "DAGSTER_PG_HOST": "127.0.0.1",
                "DAGSTER_PG_PORT": str(port),
                "DAGSTER_PG_DB": NAME,
                "DAGSTER_PG_USERNAME": NAME,
                "DAGSTER_PG_PASSWORD": PASSWORD,
            }
            _create_database(folder, environment, server, Path(home, "log"))
            yield environment
        finally:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _create_database(folder: Path, environment: dict[str, str], server: subprocess.Popen[bytes], log: Path) -> None:
    variables = {**os.environ, "PGPASSWORD": environment["DAGSTER_PG_PASSWORD"]}
    where = ["-h", "127.0.0.1", "-p", environment["DAGSTER_PG_PORT"], "-U", NAME]
    deadline = time.monotonic() + 180
    while subprocess.run([folder / "createdb", *where, NAME], env=variables, capture_output=True).returncode:
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"Postgres did not start: {log.read_text()[-2000:]}")
        time.sleep(0.2)
