"""The site next to Dagster's pages: files of a folder or a bucket, and a policy without foreign or inline scripts."""

from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from dataprep_assets.site.folder import BUCKET_FOLDER, CONTENT_TYPES, POLICY, SITE
from dataprep_assets.stores.connect import S3Address
from dataprep_assets.webserver.site import build_site_route
from dataprep_assets_tests.fakes.buckets import new_bucket
from dataprep_assets_tests.fakes.swift_server import KEY_ID, SECRET

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


@pytest.fixture
def address(moto: str, monkeypatch: pytest.MonkeyPatch) -> S3Address:
    """Return the bucket that the environment sets as the project's storage."""
    bucket = new_bucket(moto)
    values = {
        "DATAPREP_STORAGE": "s3",
        "DATAPREP_BUCKET": bucket,
        "DATAPREP_ENDPOINT_URL": moto,
        "DATAPREP_ROOT": "artifacts",
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return S3Address(
        bucket=bucket,
        prefix="artifacts",
        endpoint_url=moto,
        region="us-east-1",
        access_key_id=KEY_ID,
        secret_access_key=SECRET,
    )


def test_a_server_of_a_project_in_a_bucket_serves_the_bucket(tmp_path: Path, address: S3Address) -> None:
    store, client = address(), open_client(tmp_path, "")
    assert client.get("/site/index.html").status_code == 404
    files = {"index.html": "<h1>Datasets</h1>", "datasets/web/index.html": "<h1>web</h1>", "static/site.css": "a {}"}
    for path, text in files.items():
        store.put(f"{BUCKET_FOLDER}{path}", text.encode())
    store.put("secret.html", b"outside of the site")
    for path, text in files.items():
        response = client.get(f"/site/{path}")
        assert (response.status_code, response.text) == (200, text)
        assert response.headers["Content-Type"] == CONTENT_TYPES[Path(path).suffix]
        assert response.headers["Content-Security-Policy"] == POLICY
    assert client.get("/site/").text == files["index.html"]
    assert client.get("/site/datasets/web/").text == files["datasets/web/index.html"]
    for path in ("/site/datasets/gone/index.html", "/site/%2e%2e/secret.html", "/site/../secret.html"):
        assert client.get(path).status_code == 404
    (tmp_path / SITE).mkdir(parents=True)
    (tmp_path / SITE / "index.html").write_text("<h1>of another command</h1>")
    assert client.get("/site/index.html").text == files["index.html"]
    assert client.post("/site/index.html").status_code == 405


def test_a_bucket_that_cannot_be_opened_is_an_error_page(
    tmp_path: Path, address: S3Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATAPREP_BUCKET")
    response = open_client(tmp_path, "").get("/site/index.html")
    assert response.status_code == 502
    assert "DATAPREP_BUCKET" in response.text
    assert response.headers["Content-Security-Policy"] == POLICY
