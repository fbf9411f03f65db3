"""The site is a folder whose files are written only if they changed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import dagster as dg
import pytest

from dataprep_assets.engine.card.card import DATA_CARD
from dataprep_assets.errors import SourceError
from dataprep_assets.integrity.bucket import BucketArtifacts
from dataprep_assets.integrity.storage import LocalStorage
from dataprep_assets.site.build import SiteReport, write_site
from dataprep_assets.site.folder import CONTENT_TYPES, SITE
from dataprep_assets.site.pages import Page, PageEnvironment
from dataprep_assets.site.states import DatasetState
from dataprep_assets.site.stored import StoredDataset, link_datasets
from dataprep_assets.stores.local import LocalStore
from dataprep_assets_tests.engine.notices import write_notices
from dataprep_assets_tests.engine.notices_dataset import NoticesDataset
from dataprep_assets_tests.fakes.buckets import new_bucket, new_client
from dataprep_assets_tests.fakes.swift_server import KEY_ID, SECRET
from dataprep_assets_tests.project import new_instance

UNREACHABLE = "the bucket cannot be reached"
STATIC = ["static/site.css", "static/site.js"]


@dataclass(frozen=True)
class TextPage:
    """A page with a text, which fails if the text is `fail`."""

    slug: str
    title: str
    digest: str

    def render(self, environment: PageEnvironment) -> str:
        if self.digest == "fail":
            raise ValueError("no such column")
        return environment.render("error.html.j2", title=self.title, dataset="x", reason=self.digest)


class Site:
    """A project of some datasets, whose pages a test sets."""

    def __init__(self, root: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.instance = root, instance
        self.pages: dict[str, list[Page]] = {}
        self.buckets: dict[str, Path] = {}
        monkeypatch.setattr("dataprep_assets.site.build.list_pages", self._list_pages)

    def _list_pages(self, dataset: StoredDataset, _: DatasetState) -> list[Page]:
        if not self.pages[dataset.name]:
            raise SourceError(UNREACHABLE)
        return self.pages[dataset.name]

    def write(self, *names: str, needs_folder: bool = True) -> SiteReport:
        datasets = link_datasets(map(self._open_dataset, self.pages))
        return write_site(self.root, datasets, self.instance, broken={}, names=names or None, needs_folder=needs_folder)

    def _open_dataset(self, name: str) -> StoredDataset:
        notices = write_notices(self.root / "words").model_copy(update={"dataset": name})
        dataset = NoticesDataset(notices)
        store = StoredDataset(
            dataset, notices.store(LocalStorage(root=self.root / "artifacts", cache=self.root / "cache"))
        )
        if (bucket := self.buckets.get(name)) is None:
            return store
        artifacts = BucketArtifacts(self.root / "cache", lambda: LocalStore(bucket), "s3://bucket/prefix")
        return replace(store, store=artifacts)

    def files(self) -> list[str]:
        folder = self.root / SITE
        return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with new_instance() as instance:
        made = Site(tmp_path, instance, monkeypatch)
        made.pages = {
            "forum": [TextPage("index", "forum", "about the forum")],
            "web": [TextPage("index", "web", "about the web"), TextPage("kept", "Kept documents", "some documents")],
        }
        yield made


HISTORIES = ["history/forum.json", "history/web.json"]
PAGES = ["datasets/forum/index.html", "datasets/web/data/kept.html", "datasets/web/index.html", "index.html"]


def test_a_second_build_writes_nothing(site: Site) -> None:
    assert sorted(site.write().written_files) == sorted([*PAGES, *STATIC])
    assert site.files() == sorted(["built.json", *PAGES, *STATIC])
    before = {path: path.stat().st_mtime_ns for path in (site.root / SITE).rglob("*")}
    report = site.write()
    assert (report.written_files, report.removed_files, report.errors) == ([], [], {})
    assert {path: path.stat().st_mtime_ns for path in (site.root / SITE).rglob("*")} == before


def test_a_change_rewrites_only_its_pages(site: Site) -> None:
    site.write()
    site.pages["web"][1] = TextPage("kept", "Kept documents", "other documents")
    assert site.write().written_files == ["datasets/web/data/kept.html"]
    assert "other documents" in (site.root / SITE / "datasets/web/data/kept.html").read_text()
    # A new title is in the navigation of all pages of the dataset.
    site.pages["web"][1] = TextPage("kept", "Kept", "other documents")
    assert site.write().written_files == ["datasets/web/index.html", "datasets/web/data/kept.html"]


def test_a_lost_file_is_written_again(site: Site) -> None:
    site.write()
    (site.root / SITE / "datasets/web/index.html").unlink()
    assert site.write().written_files == ["datasets/web/index.html"]


def test_equal_facts_give_equal_bytes(site: Site, tmp_path: Path) -> None:
    site.write()
    before = {path: path.read_bytes() for path in (site.root / SITE).rglob("*") if path.is_file()}
    (site.root / SITE / "built.json").unlink()
    assert len(site.write().written_files) == len(PAGES) + len(STATIC)
    assert {path: path.read_bytes() for path in (site.root / SITE).rglob("*") if path.is_file()} == before


def test_pages_of_a_removed_dataset_are_removed(site: Site) -> None:
    site.write()
    del site.pages["web"]
    report = site.write()
    assert report.removed_files == ["datasets/web/data/kept.html", "datasets/web/index.html"]
    assert report.written_files == ["index.html"]
    assert not (site.root / SITE / "datasets/web").exists()


def test_pages_of_unnamed_datasets_are_kept(site: Site) -> None:
    site.write()
    site.pages["web"][0] = TextPage("index", "web", "changed")
    site.pages["forum"][0] = TextPage("index", "forum", "changed")
    report = site.write("forum")
    assert (report.written_files, report.removed_files) == (["datasets/forum/index.html"], [])
    assert site.write().written_files == ["datasets/web/index.html"]


def test_an_error_of_one_dataset_is_on_its_page_and_stops_no_other(site: Site) -> None:
    site.pages["forum"] = []
    site.pages["web"][1] = TextPage("kept", "Kept documents", "fail")
    report = site.write()
    assert report.errors == {"forum": UNREACHABLE, "web": "ValueError: no such column"}
    assert UNREACHABLE in (site.root / SITE / "datasets/forum/index.html").read_text()
    assert "ValueError: no such column" in (site.root / SITE / "datasets/web/data/kept.html").read_text()
    assert "about the web" in (site.root / SITE / "datasets/web/index.html").read_text()
    # The page is rewritten when its cause may be gone, although its facts did not change.
    assert site.write().errors["web"] == "ValueError: no such column"


def test_links_are_relative_and_lead_to_pages(site: Site) -> None:
    site.write()
    page = site.root / SITE / "datasets/web/data/kept.html"
    text = page.read_text()
    for link in ("../../../index.html", "../index.html", "../data/kept.html", "../../../static/site.css"):
        assert f'"{link}"' in text
        assert (page.parent / link).resolve().is_file()
    assert '<a href="../data/kept.html" aria-current="page">Kept documents</a>' in text


def list_copies(bucket: Path) -> list[str]:
    return sorted(path.relative_to(bucket).as_posix() for path in bucket.rglob(".site/**/*") if path.is_file())


def test_pages_are_copied_to_the_bucket_of_a_dataset(site: Site, tmp_path: Path) -> None:
    bucket = site.buckets["web"] = tmp_path / "bucket"
    site.write()
    pages = [f".site/{path}" for path in [*PAGES, *STATIC] if "forum" not in path]
    assert list_copies(bucket) == sorted([*pages, ".site/built.json"])
    assert {Path(path).suffix for path in pages} == set(CONTENT_TYPES)
    before = {path: path.stat().st_mtime_ns for path in bucket.rglob(".site/**/*")}
    site.write()
    site.write("forum")
    assert {path: path.stat().st_mtime_ns for path in bucket.rglob(".site/**/*")} == before
    del site.pages["web"][1]
    site.write()
    assert list_copies(bucket) == sorted([*(path for path in pages if "kept" not in path), ".site/built.json"])


def test_a_bucket_that_two_datasets_share_keeps_the_pages_of_both(site: Site, tmp_path: Path) -> None:
    bucket = site.buckets["web"] = site.buckets["forum"] = tmp_path / "bucket"
    site.write("web")
    site.write("forum")
    assert list_copies(bucket) == sorted([f".site/{path}" for path in [*PAGES, *STATIC]] + [".site/built.json"])


def test_a_bucket_that_cannot_be_reached_stops_no_other_page(site: Site, tmp_path: Path) -> None:
    site.buckets["web"] = tmp_path / "bucket"
    site.buckets["web"].write_text("not a folder")
    report = site.write()
    assert list(report.errors) == ["web"]
    assert sorted(report.written_files) == sorted([*PAGES, *STATIC])


class Cluster:
    """A project in a bucket. Each pod writes its site with an empty folder."""

    def __init__(self, site: Site, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site, self.client, self.bucket = site, new_client(url), new_bucket(url)
        values = {
            "DATAPREP_STORAGE": "s3",
            "DATAPREP_BUCKET": self.bucket,
            "DATAPREP_ENDPOINT_URL": url,
            "DATAPREP_ROOT": "artifacts",
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    def objects(self) -> dict[str, object]:
        """Return the name of each file of the site with the time of its last write."""
        found = self.client.list_objects_v2(Bucket=self.bucket, Prefix="artifacts/.site/").get("Contents", [])
        return {entry["Key"].removeprefix("artifacts/.site/"): entry["LastModified"] for entry in found}

    def read(self, path: str) -> str:
        body = self.client.get_object(Bucket=self.bucket, Key=f"artifacts/.site/{path}")["Body"]
        return str(body.read().decode())

    def write(self, pod: Path) -> SiteReport:
        self.site.root = pod
        return self.site.write(needs_folder=False)


@pytest.fixture
def cluster(site: Site, moto: str, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(site, moto, monkeypatch)


def test_a_pod_with_an_empty_folder_writes_only_changes(cluster: Cluster, tmp_path: Path) -> None:
    site = cluster.site
    for name in site.pages:
        site.instance.report_runless_asset_event(dg.AssetMaterialization([name, DATA_CARD], metadata={"rows": 3}))
    report = cluster.write(tmp_path / "first")
    assert report.index == f"s3://{cluster.bucket}/artifacts/.site/index.html"
    assert sorted(cluster.objects()) == sorted([*PAGES, *STATIC, "built.json", *HISTORIES])
    assert not (tmp_path / "first" / SITE).exists()
    before = cluster.objects()
    second = cluster.write(tmp_path / "second")
    assert (second.written_files, second.removed_files, cluster.objects()) == ([], [], before)
    site.pages["web"][1] = TextPage("kept", "Kept documents", "other documents")
    assert cluster.write(tmp_path / "third").written_files == ["datasets/web/data/kept.html"]
    assert "other documents" in cluster.read("datasets/web/data/kept.html")
    assert "about the forum" in cluster.read("datasets/forum/index.html")
    del site.pages["web"]
    last = cluster.write(tmp_path / "fourth")
    assert last.written_files == ["index.html"]
    assert {"datasets/web/index.html", "datasets/web/data/kept.html"} <= set(last.removed_files)
    assert sorted(cluster.objects()) == sorted(["built.json", *HISTORIES[:1], *PAGES[:1], "index.html", *STATIC])


def test_a_page_that_the_bucket_has_is_not_rendered_again_for_the_folder(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.write(tmp_path / "pod")
    cluster.site.root = tmp_path / "laptop"
    before = cluster.objects()
    with monkeypatch.context() as patch:
        patch.setattr(PageEnvironment, "render", None)
        cluster.site.write()
    assert cluster.objects() == before
    assert cluster.site.files() == sorted(["built.json", *PAGES, *STATIC])
    for path in PAGES:
        assert (tmp_path / "laptop" / SITE / path).read_text() == cluster.read(path)


def test_pages_of_a_dataset_with_its_own_bucket_are_in_both_buckets(cluster: Cluster, tmp_path: Path) -> None:
    own_bucket = cluster.site.buckets["web"] = tmp_path / "bucket"
    cluster.write(tmp_path / "pod")
    for path in PAGES[1:]:
        assert (own_bucket / ".site" / path).read_text() == cluster.read(path)
    assert not (own_bucket / ".site" / PAGES[0]).exists()
