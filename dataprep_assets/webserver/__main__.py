"""Entry point of `python -m dataprep_assets.webserver`: `dagster-webserver` with all its options, behind the guard."""

import os
from typing import Any

import dagster_webserver.app
import dagster_webserver.cli
from dagster_webserver.webserver import DagsterWebserver
from starlette.middleware import Middleware

from dataprep_assets.webserver.guard import Guard, list_hosts


class GuardedWebserver(DagsterWebserver[Any, Any]):
    """Dagster's webserver with the guard in front of all requests and WebSockets."""

    def build_middleware(self) -> list[Middleware]:
        return [Middleware(Guard, hosts=list_hosts(os.environ)), *super().build_middleware()]


def main() -> None:
    """Start the server. Its class is replaced in Dagster's module, because the command line has no option for it."""
    if not hasattr(dagster_webserver.app, "DagsterWebserver"):
        raise SystemExit(
            "unsupported version of dagster-webserver, whose server would be unprotected. Install a supported version"
        )
    dagster_webserver.app.DagsterWebserver = GuardedWebserver
    dagster_webserver.cli.main()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
