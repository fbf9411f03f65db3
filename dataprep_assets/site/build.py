"""Writes the site: the overview, and the pages of each dataset.

The site is a folder of files, replaced one by one, so that a reader never sees half a page. A page is rewritten only if
its facts or the templates changed, and the pages of removed datasets are removed. `built.json` has the digests; without
it, every page is written again. Equal facts give equal bytes.

A dataset whose pages cannot be computed gets a page with the reason, and does not stop the others.

Entry point: `write_site`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from urllib.parse import quote

import dagster as dg
import orjson

from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.commit import write_atomically
from dataprep_assets.project import read_state
from dataprep_assets.site.dataset import describe_dataset
from dataprep_assets.site.folder import BUCKET_FOLDER, CONTENT_TYPES, HISTORY, INDEX, SITE
from dataprep_assets.site.history import MAX_RUNS, read_history
from dataprep_assets.site.overview import describe_overview
from dataprep_assets.site.pages import STATIC, TEMPLATES, FactsPage, Link, Page, PageEnvironment
from dataprep_assets.site.samples import list_sample_pages
from dataprep_assets.site.states import DatasetState, summarize_datasets
from dataprep_assets.site.stored import StoredDataset
from dataprep_assets.stores.files import digest_value, sha256_file

_RECORD = "built.json"
_OVERVIEW = "Overview"


@dataclass(kw_only=True)
class SiteReport:
    """The result of writing the site.

    Attributes:
        index: The first page.
        states: The states of the datasets.
        written_files: Paths of the files that were written, relative to the site.
        removed_files: Paths of the files that were removed.
        errors: Dataset → why its pages could not be made.
    """

    index: Path
    states: Sequence[DatasetState] = ()
    written_files: list[str] = field(default_factory=list)
    removed_files: list[str] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)


def write_site(
    root: Path,
    datasets: Sequence[StoredDataset],
    instance: dg.DagsterInstance,
    *,
    broken: Mapping[str, str],
    names: Collection[str] | None = None,
) -> SiteReport:
    """Write the site of a project.

    Args:
        root: The folder of the project.
        datasets: Its datasets.
        instance: The instance that recorded their runs.
        broken: Dataset whose declaration cannot be loaded → the reason.
        names: The datasets whose pages are written; None for all. The overview always has all datasets.
    """
    runs = instance.get_run_records(limit=MAX_RUNS)
    histories = {dataset.name: read_history(instance, dataset, root / HISTORY, runs) for dataset in datasets}
    states = summarize_datasets(datasets, instance, histories)
    states_by_name = {state.dataset: state for state in states}
    report = SiteReport(index=root / SITE / INDEX, states=states)
    writer = _Writer(root / SITE, report)
    for file in sorted(STATIC.iterdir()):
        writer.write_file(f"static/{file.name}", file)
    writer.write(INDEX, describe_overview(states, broken), (Link(_OVERVIEW, INDEX, current=True),))
    for dataset in datasets:
        folder = _locate_folder(dataset.name)
        if names is not None and dataset.name not in names:
            writer.keep(folder, dataset.store)
            continue
        pages = [
            _SafePage(page, dataset, report) for page in _list_pages(dataset, states_by_name[dataset.name], report)
        ]
        links = [(page.title, _name_file(page)) for page in pages]
        for page in pages:
            path = _name_file(page)
            writer.write(f"{folder}/{path}", page, _build_navigation(links, path))
        writer.copy_to_bucket(folder, dataset.store)
    writer.finish()
    return report


def locate_page(root: Path, dataset: str) -> Path:
    """Return the page of a dataset in the site of a project."""
    return root / SITE / _locate_folder(dataset) / INDEX


def _locate_folder(dataset: str) -> str:
    return f"datasets/{quote(dataset, safe='')}"


def _name_file(page: Page) -> str:
    """Return the path of a page in its dataset's folder."""
    return INDEX if page.slug == "index" else f"data/{page.slug}.html"


def _build_navigation(links: Sequence[tuple[str, str]], path: str) -> tuple[Link, ...]:
    """Return the links from the page `path` of a dataset: to the overview, and to all pages of the dataset."""
    up = "../" * path.count("/")
    return (
        Link(_OVERVIEW, f"{up}../../{INDEX}"),
        *(Link(title, f"{up}{target}", current=target == path) for title, target in links),
    )


@dataclass(frozen=True)
class _SafePage:
    """A page that shows the reason if it cannot be rendered."""

    page: Page
    dataset: StoredDataset
    report: SiteReport

    @property
    def slug(self) -> str:
        return self.page.slug

    @property
    def title(self) -> str:
        return self.page.title

    @property
    def digest(self) -> str:
        return self.page.digest

    def render(self, environment: PageEnvironment) -> str:
        try:
            return self.page.render(environment)
        # Catch all errors, because an error in one page must not stop the others.
        except Exception as error:
            return _build_error_page(self.dataset, error, self.report, self.slug, self.title).render(environment)


def _list_pages(dataset: StoredDataset, state: DatasetState, report: SiteReport) -> Sequence[Page]:
    """Return the pages of a dataset; if they cannot be computed, one page with the reason."""
    try:
        return list_pages(dataset, state)
    # Catch all errors, because an error in the pages of one dataset must not stop the others.
    except Exception as error:
        return [_build_error_page(dataset, error, report, "index", dataset.name)]


def _build_error_page(dataset: StoredDataset, error: Exception, report: SiteReport, slug: str, title: str) -> FactsPage:
    """Record why a page cannot be made, and return a page that says so."""
    # Name the class of an error that is not ours, because its text may be unclear.
    named_error = error if isinstance(error, DataprepError) else DataprepError(f"{type(error).__name__}: {error}")
    reason = report.errors[dataset.name] = dataset.privacy.public_error(named_error)
    facts = {"dataset": dataset.name, "reason": reason}
    return FactsPage(slug=slug, title=title, digest=digest_value(facts), template="error.html.j2", facts=facts)


def list_pages(dataset: StoredDataset, state: DatasetState) -> list[Page]:
    """Return the pages of a dataset: its own page, and the pages with samples of its data."""
    return [describe_dataset(dataset, state), *list_sample_pages(dataset)]


@cache
def _digest_templates() -> str:
    """Return a digest of all templates, because a page may include any of them."""
    return digest_value([[path.name, sha256_file(path)] for path in sorted(TEMPLATES.iterdir())])


class _Writer:
    """Writes changed files, and removes the files that were neither written nor kept."""

    def __init__(self, folder: Path, report: SiteReport) -> None:
        self._folder, self._report = folder, report
        self._old_digests = read_state(folder / _RECORD, dict[str, str]) or {}
        self._digests: dict[str, str] = {}

    def write(self, path: str, page: Page, navigation: tuple[Link, ...]) -> None:
        """Write a page unless its facts, its navigation and the templates are unchanged."""
        digest = digest_value([page.digest, _digest_templates(), [[link.title, link.href] for link in navigation]])
        environment = PageEnvironment(root="../" * path.count("/"), navigation=navigation)
        if not self._is_current(path, digest):
            errors = len(self._report.errors)
            self._replace(path, page.render(environment).encode())
            if len(self._report.errors) > errors:
                self._digests[path] = ""  # try again next time

    def write_file(self, path: str, source: Path) -> None:
        """Write a copy of a file."""
        if not self._is_current(path, sha256_file(source)):
            self._replace(path, source.read_bytes())

    def keep(self, folder: str, store: ArtifactStore) -> None:
        """Keep the files of a folder, and their copies in a bucket."""
        prefixes = (f"{folder}/", f"{store.address}/{BUCKET_FOLDER}{folder}/")
        self._digests |= {path: digest for path, digest in self._old_digests.items() if path.startswith(prefixes)}

    def copy_to_bucket(self, folder: str, store: ArtifactStore) -> None:
        """Copy the pages of a folder, the overview and the static files to the bucket of a dataset, if it has one."""
        if "://" not in store.address:
            return
        from dataprep_assets.integrity.bucket import BucketArtifacts

        assert isinstance(store, BucketArtifacts)
        address = f"{store.address}/{BUCKET_FOLDER}"
        copied = {path: digest for path, digest in self._digests.items() if "://" not in path}
        for path, digest in copied.items():
            url = f"{address}{path}"
            if not path.startswith((f"{folder}/", "static/", INDEX)):
                continue
            if self._old_digests.get(url) != digest and self._digests.get(url) != digest:
                data = (self._folder / path).read_bytes()
                store.store.put(f"{BUCKET_FOLDER}{path}", data, content_type=CONTENT_TYPES[Path(path).suffix])
            self._digests[url] = digest
        for url in self._old_digests:
            if url.startswith(f"{address}{folder}/") and url not in self._digests:
                store.store.delete(url.removeprefix(f"{store.address}/"))

    def _is_current(self, path: str, digest: str) -> bool:
        self._digests[path] = digest
        return self._old_digests.get(path) == digest and (self._folder / path).is_file()

    def _replace(self, path: str, data: bytes) -> None:
        target = self._folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, data, durably=False)
        self._report.written_files.append(path)

    def finish(self) -> None:
        """Remove the files that are no longer part of the site, and record the digests of the others."""
        for file in sorted(self._folder.rglob("*"), reverse=True):
            path = file.relative_to(self._folder).as_posix()
            if file.is_dir():
                if not any(file.iterdir()):
                    file.rmdir()
            elif path not in self._digests and path != _RECORD:
                file.unlink()
                self._report.removed_files.append(path)
        if self._digests != self._old_digests:
            write_atomically(self._folder / _RECORD, orjson.dumps(self._digests, option=orjson.OPT_INDENT_2))
