"""The site of the datasets under `/site/` of Dagster's address: files, with a strict Content-Security-Policy.

The files are in a folder of the project. A server that does not share this folder with the runs, such as a pod, reads
the copies in the bucket of the project's storage.
"""

from functools import cached_property
from html import escape
from pathlib import Path, PurePosixPath

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from dataprep_assets.errors import DataprepError, MissingArtifactError
from dataprep_assets.integrity.storage import find_local_storage
from dataprep_assets.resources.environment import open_storage
from dataprep_assets.site.folder import BUCKET_FOLDER, CONTENT_TYPES, INDEX, POLICY, SITE
from dataprep_assets.stores.store import Store

_HEADERS = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<h1>{title}</h1>
<p>{text}</p>
</html>
"""
_MISSING = _PAGE.format(
    title="Page not found",
    text="The pages of the datasets have not been written, or this one no longer exists. "
    "Materialize the asset <code>datasets</code>, or run <code>dataprep site</code>.",
)


class SiteFiles(StaticFiles):
    """The files of the site. Its folder may be created or removed at any time."""

    def __init__(self, root: Path) -> None:
        super().__init__(directory=root / SITE, html=True, check_dir=False)
        self._root = root

    async def check_config(self) -> None:
        """Accept a missing folder."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        try:
            response = await super().get_response(path, scope)
        except HTTPException as error:
            if error.status_code != 404:
                raise
            response = await run_in_threadpool(self._read_copy, path)
        response.headers.update(_HEADERS)
        return response

    @cached_property
    def _bucket(self) -> Store | None:
        """The bucket of the project's storage; None for a folder."""
        return None if find_local_storage(self._root) is not None else open_storage(self._root).address()()

    def _read_copy(self, path: str) -> Response:
        """Return a file from the bucket; a page with the reason if it cannot be read."""
        # Starlette removes the slash at the end of a folder's address, so a path without a known suffix is a folder.
        name = PurePosixPath(path)
        file = name if name.suffix in CONTENT_TYPES else name / INDEX
        try:
            if self._bucket is None or ".." in file.parts:
                return HTMLResponse(_MISSING, status_code=404)
            data = b"".join(self._bucket.read(f"{BUCKET_FOLDER}{file}"))
        except MissingArtifactError:
            return HTMLResponse(_MISSING, status_code=404)
        except DataprepError as error:
            page = _PAGE.format(title="The bucket cannot be read", text=escape(str(error)))
            return HTMLResponse(page, status_code=502)
        return Response(data, media_type=CONTENT_TYPES[file.suffix])


def build_site_route(root: Path, prefix: str = "") -> Mount:
    """Return the route of the site of the project in `root`; all paths of the server begin with `prefix`."""
    return Mount(f"{prefix}/site", SiteFiles(root))
