"""`dataprep site`: write the pages with the state, history and contents of the datasets."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import NamesOrAll
from dataprep_assets.errors import DataprepError, count_of

if TYPE_CHECKING:
    from dataprep_assets.site.stored import StoredDataset


def command(
    datasets: NamesOrAll = None,
    open_: Annotated[
        bool, typer.Option("--open", help="Open the pages in the browser of this machine.", show_default=False)
    ] = False,
) -> int:
    """Write pages that show the datasets, their history and their data.

    They are in `.dataprep/site`; any web server can serve this folder. With names, only the overview and the pages of
    these datasets are written. Pages whose content has not changed are kept. Exits with 0 if all pages could be made,
    else with 1; the pages then show the reasons.
    """
    from dataprep_assets.site.build import locate_page, write_site
    from dataprep_assets.site.stored import link_datasets

    open_project = project.current_project()
    # Report an unknown name before anything is written.
    for name in datasets or ():
        project.find_declaration(name)
    broken: dict[str, str] = {}
    stored_datasets = link_datasets(_open_datasets(broken))
    with open_project.instance() as instance:
        report = write_site(open_project.root, stored_datasets, instance, broken=broken, names=datasets or None)
    for name, reason in {**broken, **report.errors}.items():
        print(f"{name}: {reason}", file=sys.stderr)
    page = locate_page(open_project.root, datasets[0] if datasets and len(datasets) == 1 else None)
    print(f"{count_of(len(report.written_files), 'file')} written, {len(report.removed_files)} removed: {page}")
    if open_:
        import webbrowser

        webbrowser.open(page.as_uri())
    return 1 if broken or report.errors else 0


def _open_datasets(broken: dict[str, str]) -> "Iterator[StoredDataset]":
    """Yield the datasets that the code location shows; the reasons for the others are added to `broken`."""
    from dataprep_assets.project import is_shown
    from dataprep_assets.site.stored import StoredDataset

    for name, kind in project.list_kinds().items():
        if is_shown(kind):
            try:
                dataset = project.current_project().dataset(name)
                yield StoredDataset(dataset.component, dataset.store)
            except DataprepError as error:
                broken[name] = str(error)
