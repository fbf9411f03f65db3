"""The page of a published repository, `README.md`: the data card's page below the metadata that the Hub reads.

The metadata (YAML) lists the Parquet files of each product and split, so that `datasets.load_dataset` and the Hub's
dataset viewer read them. Sources: Hugging Face Hub, "Dataset Cards" and "Manual Configuration".

Entry point: `encode_page`.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import yaml  # type: ignore[import-untyped]

from dataprep_assets.engine.card.contents import CardRecords

PAGE = "README.md"
_LICENSES = frozenset(
    [
        "agpl-3.0",
        "apache-2.0",
        "bsd-2-clause",
        "bsd-3-clause",
        "bsl-1.0",
        "cc-by-3.0",
        "cc-by-4.0",
        "cc-by-nc-4.0",
        "cc-by-nc-nd-4.0",
        "cc-by-nc-sa-4.0",
        "cc-by-nd-4.0",
        "cc-by-sa-3.0",
        "cc-by-sa-4.0",
        "cc0-1.0",
        "cdla-permissive-1.0",
        "cdla-permissive-2.0",
        "cdla-sharing-1.0",
        "gpl-2.0",
        "gpl-3.0",
        "isc",
        "lgpl-3.0",
        "mit",
        "mpl-2.0",
        "unlicense",
        "wtfpl",
        "zlib",
    ]
)
"""The Hub's identifiers that are SPDX identifiers in lower case. The Hub refuses other identifiers."""


def encode_page(page: str, *, records: Sequence[CardRecords], licenses: Sequence[str]) -> bytes:
    """Return the bytes of the page.

    Args:
        page: The data card's page.
        records: The Parquet rows of the products.
        licenses: The licenses of the dataset.
    """
    metadata: dict[str, Any] = {**_describe_licenses(licenses)}
    if records:
        metadata["configs"] = list(_list_configs(records))
    else:
        # Without a list of data files, the Hub would show receipts as data.
        metadata["viewer"] = False
    return f"---\n{yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)}---\n\n{page}".encode()


def _describe_licenses(licenses: Iterable[str]) -> dict[str, Any]:
    names = list(licenses)
    if not names:
        return {}
    if all(name.lower() in _LICENSES for name in names):
        return {"license": [name.lower() for name in names]}
    return {"license": "other", "license_name": ", ".join(names)}


def _list_configs(records: Sequence[CardRecords]) -> Iterator[dict[str, Any]]:
    """Yield the configuration of each product; the first is the default of `load_dataset`."""
    for number, (artifact, splits) in enumerate(groupby(records, key=lambda one: one.artifact)):
        files = [{"split": one.split, "path": f"{artifact}/{one.prefix}*.parquet"} for one in splits]
        config = {"config_name": artifact.replace("/", "_"), "data_files": files}
        yield {**config, "default": True} if number == 0 else config
