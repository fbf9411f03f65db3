"""`python -m dataprep_assets.webserver`: `dagster-webserver` with all its options, behind the guard."""

import os
from typing import Any

import dagster_webserver.app
import dagster_webserver.cli
from dagster_webserver.webserver import DagsterWebserver
from starlette.middleware import Middleware

from dataprep_assets.webserver.guard import Guard, hosts_of


class GuardedWebserver(DagsterWebserver[Any, Any]):
    """Dagster's webserver with the guard in front of every request and WebSocket."""

    def build_middleware(self) -> list[Middleware]:
        return [Middleware(Guard, hosts=hosts_of(os.environ)), *super().build_middleware()]


def main() -> None:
    """Serve. Dagster's command line has no option for the class, so its factory is replaced."""
    if not hasattr(dagster_webserver.app, "DagsterWebserver"):
        raise SystemExit("unsupported version of dagster-webserver: its server would be unprotected")
    dagster_webserver.app.DagsterWebserver = GuardedWebserver
    dagster_webserver.cli.main()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
