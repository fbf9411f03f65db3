"""Slurm's accounting on the loopback: slurmdbd, and a MariaDB of its own for it."""

import os
import secrets
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dataprep_assets_tests.servers import free_ports

_CONFIGURATION = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm
"""
_OF_THE_CONTROLLER = """
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={folder}/munge/socket
MinJobAge=2
"""
_SMALL = ("--innodb-log-file-size=4M", "--innodb-buffer-pool-size=16M", "--innodb-flush-log-at-trx-commit=0")


def require_accounting() -> None:
    """Skip the test where accounting is not installed."""
    needed = ("slurmdbd", "sacct", "mariadbd", "mariadb-install-db", "my_print_defaults")
    if missing := [name for name in needed if shutil.which(name) is None]:
        pytest.skip(f"no accounting of Slurm: {missing[0]} is not on PATH (Debian: slurmdbd mariadb-server-core)")


class Accounting:
    """The files and commands of both daemons, which the cluster starts before its controller."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port, self._database = free_ports(2)

    @property
    def configuration(self) -> str:
        """What the controller's configuration says of it; jobs that ended are forgotten within seconds."""
        return _OF_THE_CONTROLLER.format(folder=self._folder, port=self._port)

    def start(self, start: Callable[..., None], wait: Callable[[Callable[[], bool], float, str], None]) -> None:
        """Start them.

        Args:
            start: Starts a daemon: its name, and its command.
            wait: Waits until something holds, for so many seconds; the text says what is awaited.
        """
        folder, password = self._folder, secrets.token_hex(16)
        data = folder / "database"
        install = ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={data}", "--skip-test-db"]
        subprocess.run([*install, *_SMALL], check=True, capture_output=True, timeout=120)
        first = folder / "first.sql"
        statements = [f"CREATE USER slurm IDENTIFIED BY '{password}'", "GRANT ALL ON slurm.* TO slurm"]
        first.write_text("".join(f"{statement};\n" for statement in statements))  # MariaDB takes a line for one
        place = [f"--datadir={data}", f"--socket={data}/socket", "--bind-address=127.0.0.1", f"--port={self._database}"]
        start("mariadbd", "mariadbd", "--no-defaults", "--user=root", "--skip-name-resolve", f"--init-file={first}",
              *place, *_SMALL)  # fmt: skip
        wait((data / "socket").exists, 60, "MariaDB")
        configuration = folder / "slurmdbd.conf"
        configuration.write_text(
            _CONFIGURATION.format(folder=folder, port=self._port, database=self._database, password=password)
        )
        configuration.chmod(0o600)  # or slurmdbd refuses it
        start("slurmdbd", "slurmdbd", "-D")
        variables = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        register = ["sacctmgr", "--immediate", "--quiet", "add", "cluster", "tests"]

        def is_registered() -> bool:
            return subprocess.run(register, env=variables, capture_output=True, timeout=60).returncode == 0

        wait(is_registered, 60, "slurmdbd")
