"""The site of the datasets under `/site/` of Dagster's address: files, with a strict Content-Security-Policy."""

from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from dataprep_assets.site.folder import POLICY, SITE

_HEADERS = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
_MISSING = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Page not found</title>
<h1>Page not found</h1>
<p>The pages of the datasets have not been written, or this one no longer exists.
Materialize the asset <code>datasets</code>, or run <code>dataprep site</code>.</p>
</html>
"""


class SiteFiles(StaticFiles):
    """The files of the site. Its folder may be created or removed at any time."""

    async def check_config(self) -> None:
        """Accept a missing folder."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        try:
            response = await super().get_response(path, scope)
        except HTTPException as error:
            if error.status_code != 404:
                raise
            response = HTMLResponse(_MISSING, status_code=404)
        response.headers.update(_HEADERS)
        return response


def build_site_route(root: Path, prefix: str = "") -> Mount:
    """Return the route of the site of the project in `root`; all paths of the server begin with `prefix`."""
    return Mount(f"{prefix}/site", SiteFiles(directory=root / SITE, html=True, check_dir=False))
