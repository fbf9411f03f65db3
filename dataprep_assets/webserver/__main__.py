"""Entry point of `python -m dataprep_assets.webserver`: `dagster-webserver` with all its options, behind the guard.

The server also serves the project's site (`site`). The project is found as by commands; without one, there is
no site.
"""

import os
from contextlib import suppress
from typing import Any

import dagster_webserver.app
import dagster_webserver.cli
from dagster_webserver.webserver import DagsterWebserver
from starlette.middleware import Middleware
from starlette.routing import BaseRoute

from dataprep_assets.errors import ConfigError
from dataprep_assets.project import find_project
from dataprep_assets.webserver.guard import Guard, list_hosts
from dataprep_assets.webserver.site import build_site_route


class GuardedWebserver(DagsterWebserver[Any, Any]):
    """Dagster's webserver with the site, and with the guard in front of all requests and WebSockets."""

    def build_routes(self) -> list[BaseRoute]:
        routes: list[BaseRoute] = super().build_routes()  # type: ignore[no-untyped-call]
        with suppress(ConfigError):
            # Put the site first, because Dagster's last route matches every path.
            routes.insert(0, build_site_route(find_project().root, self._app_path_prefix))
        return routes

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
