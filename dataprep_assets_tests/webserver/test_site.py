"""The site next to Dagster's pages: files of one folder, with a policy that allows no foreign or inline script."""

from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from dataprep_assets.site.folder import POLICY, SITE
from dataprep_assets.webserver.site import build_site_route

PREFIXES = ["", "/dagster"]


def open_client(root: Path, prefix: str) -> TestClient:
    return TestClient(Starlette(routes=[build_site_route(root, prefix)]))


@pytest.mark.parametrize("prefix", PREFIXES)
def test_pages_are_served_with_the_policy(tmp_path: Path, prefix: str) -> None:
    client = open_client(tmp_path, prefix)
    missing = client.get(f"{prefix}/site/")
    assert missing.status_code == 404
    assert "dataprep site" in missing.text
    page = tmp_path / SITE / "datasets" / "web" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text("<h1>web</h1>")
    found = client.get(f"{prefix}/site/datasets/web/index.html")
    assert (found.status_code, found.text) == (200, "<h1>web</h1>")
    assert client.get(f"{prefix}/site/datasets/web/").text == found.text
    for response in (missing, found):
        assert response.headers["Content-Security-Policy"] == POLICY
        assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'none'" in POLICY
    assert "unsafe" not in POLICY


def test_no_file_outside_of_the_site_is_served(tmp_path: Path) -> None:
    (tmp_path / SITE).mkdir(parents=True)
    (tmp_path / ".env").write_text("SECRET=1")
    client = open_client(tmp_path, "")
    for path in ("/site/../../.env", "/site/%2e%2e/%2e%2e/.env", "/site//etc/passwd"):
        assert client.get(path).status_code == 404
    assert client.post("/site/index.html").status_code == 405
