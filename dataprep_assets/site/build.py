"""Writes the site: the overview, and the pages of each dataset."""

from dataprep_assets.site.history import DatasetHistory
from dataprep_assets.site.pages import Page
from dataprep_assets.site.stored import StoredDataset


def list_pages(dataset: StoredDataset, history: DatasetHistory) -> list[Page]:
    """Return the pages of a dataset: its own page, and the pages with samples of its data.

    `describe_dataset` comes from `site/dataset.py`, `list_sample_pages` from `site/samples/`.
    """
    # from dataprep_assets.site.dataset import describe_dataset
    # from dataprep_assets.site.samples import list_sample_pages
    # return [describe_dataset(dataset, history), *list_sample_pages(dataset)]
    return []
