"""Writes the site: the overview, and the pages of each dataset.

The site is a folder of files, in the project and in buckets (`copies`). A page is rewritten only if its facts or the
templates changed, and the pages of removed datasets are removed. Equal facts give equal bytes.

A dataset whose pages cannot be computed gets a page with the reason, and does not stop the others.

Entry point: `write_site`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from urllib.parse import quote

import dagster as dg

from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.commit import write_atomically
from dataprep_assets.site.copies import BucketCopy, FolderCopy, SiteCopy, open_project_bucket
from dataprep_assets.site.dataset import describe_dataset
from dataprep_assets.site.folder import HISTORY, HISTORY_FOLDER, INDEX, SITE, STATIC_FOLDER
from dataprep_assets.site.history import MAX_RUNS, read_history
from dataprep_assets.site.overview import describe_overview
from dataprep_assets.site.pages import STATIC, TEMPLATES, FactsPage, Link, Page, PageEnvironment
from dataprep_assets.site.samples import list_sample_pages
from dataprep_assets.site.states import DatasetState, summarize_datasets
from dataprep_assets.site.stored import StoredDataset
from dataprep_assets.stores.files import digest_value, sha256_file
from dataprep_assets.stores.store import Store

_OVERVIEW = "Overview"


@dataclass(kw_only=True)
class SiteReport:
    """The result of writing the site.

    Attributes:
        index: Path or URL of the first page.
        states: The states of the datasets.
        written_files: Paths of the files that were written to any place, relative to the site.
        removed_files: Paths of the files that were removed.
        errors: Dataset → why its pages could not be made.
    """

    index: str
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
    needs_folder: bool = True,
) -> SiteReport:
    """Write the site of a project to its folder and, if its storage is a bucket, to the bucket.

    The pages of a dataset with a bucket of its own are also written there, with the overview.

    Args:
        root: The folder of the project.
        datasets: Its datasets.
        instance: The instance that recorded their runs.
        broken: Dataset whose declaration cannot be loaded → the reason.
        names: The datasets whose pages are written; None for all. The overview always has all datasets.
        needs_folder: Whether the folder is also written if the project's storage is a bucket. The folder of a pod is
            empty, so its history is kept in the bucket.
    """
    bucket = open_project_bucket(root)
    folders = [FolderCopy(root / SITE)] if needs_folder or bucket is None else []
    whole_copies = [*folders, *([] if bucket is None else [BucketCopy(bucket)])]
    report = SiteReport(index=f"{whole_copies[0].url}/{INDEX}")
    writer = _Writer(whole_copies, report)
    _add_own_copies(writer, [dataset for dataset in datasets if names is None or dataset.name in names], bucket)
    if not folders:
        _fetch_records(whole_copies[0], root, datasets)
    runs = instance.get_run_records(limit=MAX_RUNS)
    histories = {dataset.name: read_history(instance, dataset, root / HISTORY, runs) for dataset in datasets}
    if folders:
        writer.keep(HISTORY_FOLDER)
    else:
        for file in sorted((root / HISTORY).glob("*.json")):
            writer.write_file(f"{HISTORY_FOLDER}{file.name}", file)
    report.states = states = summarize_datasets(datasets, instance, histories)
    states_by_name = {state.dataset: state for state in states}
    for file in sorted(STATIC.iterdir()):
        writer.write_file(f"{STATIC_FOLDER}{file.name}", file)
    writer.write(INDEX, describe_overview(states, broken), (Link(_OVERVIEW, INDEX, current=True),))
    for dataset in datasets:
        folder = f"{_locate_folder(dataset.name)}/"
        if names is not None and dataset.name not in names:
            writer.keep(folder)
            continue
        pages = [
            _SafePage(page, dataset, report) for page in _list_pages(dataset, states_by_name[dataset.name], report)
        ]
        links = [(page.title, _name_file(page)) for page in pages]
        for page in pages:
            path = _name_file(page)
            writer.write(f"{folder}{path}", page, _build_navigation(links, path))
    writer.finish()
    return report


def _add_own_copies(writer: "_Writer", datasets: Sequence[StoredDataset], project_bucket: Store | None) -> None:
    """Add the buckets of datasets that are not in the project's bucket."""
    datasets_by_bucket: dict[str, list[StoredDataset]] = {}
    for dataset in datasets:
        if "://" in dataset.store.address and (project_bucket is None or dataset.store.address != project_bucket.url):
            datasets_by_bucket.setdefault(dataset.store.address, []).append(dataset)
    for members in datasets_by_bucket.values():
        folders = [f"{_locate_folder(dataset.name)}/" for dataset in members]
        writer.add_own_copy(partial(_open_own_copy, members[0].store, folders), members)


def _open_own_copy(store: ArtifactStore, folders: Sequence[str]) -> BucketCopy:
    # Import this module only for a bucket, because most datasets are in a folder.
    from dataprep_assets.integrity.bucket import BucketArtifacts

    assert isinstance(store, BucketArtifacts)
    return BucketCopy(store.store, folders)


def _fetch_records(bucket_copy: SiteCopy, root: Path, datasets: Sequence[StoredDataset]) -> None:
    """Copy the records of histories from the bucket to the folder of the project, unless the folder has them."""
    for dataset in datasets:
        path = root / HISTORY / f"{dataset.name}.json"
        if not path.is_file() and bucket_copy.has(name := f"{HISTORY_FOLDER}{path.name}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, bucket_copy.read(name), durably=False)


def locate_page(root: Path, dataset: str | None) -> Path:
    """Return the page of a dataset in the folder of a project's site; the overview for None."""
    return root / SITE / ("" if dataset is None else _locate_folder(dataset)) / INDEX


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
    """Writes changed files to all copies of the site, and removes the files that were neither written nor kept."""

    def __init__(self, whole_copies: Sequence[SiteCopy], report: SiteReport) -> None:
        self._copies, self._report = list(whole_copies), report
        self._own_copies: dict[SiteCopy, Sequence[StoredDataset]] = {}

    def add_own_copy(self, open_copy: Callable[[], SiteCopy], datasets: Sequence[StoredDataset]) -> None:
        """Also write to the bucket of some datasets, unless it cannot be used: the report then has the reason."""
        try:
            site_copy = open_copy()
        except DataprepError as error:
            self._report_errors(datasets, error)
        else:
            self._copies.append(site_copy)
            self._own_copies[site_copy] = datasets

    def write(self, path: str, page: Page, navigation: tuple[Link, ...]) -> None:
        """Write a page unless its facts, its navigation and the templates are unchanged."""
        digest = digest_value([page.digest, _digest_templates(), [[link.title, link.href] for link in navigation]])
        environment = PageEnvironment(root="../" * path.count("/"), navigation=navigation)
        errors = self._report.errors.copy()

        def render() -> tuple[bytes, str]:
            data = page.render(environment).encode()
            # Without a digest, a page with an error is written again next time.
            return data, digest if self._report.errors == errors else ""

        self._write(path, digest, render)

    def write_file(self, path: str, source: Path) -> None:
        """Write a copy of a file."""
        digest = sha256_file(source)
        self._write(path, digest, lambda: (source.read_bytes(), digest))

    def keep(self, folder: str) -> None:
        """Keep the files of a folder."""
        for site_copy in self._copies:
            site_copy.keep(folder)

    def finish(self) -> None:
        """Remove the files that are no longer part of the site, and record the digests of the others."""
        removed_files = list[str]()
        for site_copy in [*self._copies]:
            self._try(site_copy, partial(site_copy.finish, removed_files))
        self._report.removed_files += sorted(set(removed_files))

    def _write(self, path: str, digest: str, render: Callable[[], tuple[bytes, str]]) -> None:
        copies = [site_copy for site_copy in self._copies if site_copy.includes(path)]
        current_copies = [site_copy for site_copy in copies if site_copy.is_current(path, digest)]
        for site_copy in current_copies:
            site_copy.note(path, digest)
        if len(current_copies) == len(copies):
            return
        data, new_digest = (current_copies[0].read(path), digest) if current_copies else render()
        for site_copy in copies:
            if site_copy not in current_copies:
                self._try(site_copy, partial(site_copy.write, path, data))
                site_copy.note(path, new_digest)
        self._report.written_files.append(path)

    def _try(self, site_copy: SiteCopy, action: Callable[[], None]) -> None:
        """Execute the action; if the bucket of a dataset fails, write no more to it."""
        try:
            action()
        except DataprepError as error:
            if site_copy not in self._own_copies:
                raise
            self._copies.remove(site_copy)
            self._report_errors(self._own_copies[site_copy], error)

    def _report_errors(self, datasets: Sequence[StoredDataset], error: DataprepError) -> None:
        for dataset in datasets:
            self._report.errors[dataset.name] = dataset.privacy.public_error(error)
