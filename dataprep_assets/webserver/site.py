"""The site of the datasets under `/site/` of Dagster's address: files, with a strict Content-Security-Policy.

The files are in a folder of the project, or in the bucket of the project's storage, to which runs write them.
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
from dataprep_assets.site.copies import open_project_bucket
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
            bucket = await run_in_threadpool(lambda: self._bucket)
            if bucket is not None and scope["method"] in ("GET", "HEAD"):
                response = await run_in_threadpool(_read_file, bucket, path)
            else:
                response = await super().get_response(path, scope)
        except (MissingArtifactError, HTTPException) as error:
            if isinstance(error, HTTPException) and error.status_code != 404:
                raise
            response = HTMLResponse(_MISSING, status_code=404)
        except DataprepError as error:
            page = _PAGE.format(title="The bucket cannot be read", text=escape(str(error)))
            response = HTMLResponse(page, status_code=502)
        response.headers.update(_HEADERS)
        return response

    @cached_property
    def _bucket(self) -> Store | None:
        return open_project_bucket(self._root)


def _read_file(bucket: Store, path: str) -> Response:
    """Return a file from the bucket. Raises MissingArtifactError if the site has no such file."""
    # Starlette removes the slash at the end of a folder's address, so a path without a known suffix is a folder.
    name = PurePosixPath(path)
    file = name if name.suffix in CONTENT_TYPES else name / INDEX
    if ".." in file.parts:
        raise MissingArtifactError(f"{path}: not a file of the site")
    return Response(b"".join(bucket.read(f"{BUCKET_FOLDER}{file}")), media_type=CONTENT_TYPES[file.suffix])


def build_site_route(root: Path, prefix: str = "") -> Mount:
    """Return the route of the site of the project in `root`; all paths of the server begin with `prefix`."""
    return Mount(f"{prefix}/site", SiteFiles(root))
