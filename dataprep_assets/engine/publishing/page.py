"""The page of a published repository, `README.md`: the data card's page below the metadata that the Hub reads.

The metadata (YAML) lists the Parquet, Arrow or JSON Lines files of each product and split, so that
`datasets.load_dataset` and the Hub's dataset viewer read them. Sources: Hugging Face Hub, "Dataset Cards" and "Manual
Configuration".

Entry points: `encode_page`, `list_configs`.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import yaml  # type: ignore[import-untyped]

from dataprep_assets.integrity.receipt import Receipt

PAGE = "README.md"
_LICENSES = frozenset(
    {
        *("agpl-3.0", "apache-2.0", "bsd-2-clause", "bsd-3-clause", "bsl-1.0", "gpl-2.0", "gpl-3.0", "isc", "lgpl-3.0"),
        *("cc-by-3.0", "cc-by-4.0", "cc-by-nc-4.0", "cc-by-nc-nd-4.0", "cc-by-nc-sa-4.0", "cc-by-nd-4.0", "cc0-1.0"),
        *("cc-by-sa-3.0", "cc-by-sa-4.0", "cdla-permissive-1.0", "cdla-permissive-2.0", "cdla-sharing-1.0"),
        *("mit", "mpl-2.0", "unlicense", "wtfpl", "zlib"),
    }
)
"""The Hub's identifiers that are SPDX identifiers in lower case. The Hub refuses other identifiers."""
_DATA_FILE = re.compile(
    r"(?P<start>(?:data/|splits/)?(?P<split>\w+))(?P<rest>-[^/]*|/[^/]*)?(?P<suffix>\.parquet|\.arrow|\.jsonl(?:\.zst|\.gz)?)"
)
"""Matches the data files of views and runs: `[data/|splits/]<split>[-<part>|/<part>]` with a suffix."""
_OTHER_SPLITS = ("train", "validation", "valid", "val", "test")
"""Names that views may give to splits, because a trainer expects them."""


def encode_page(page: str, *, configs: Sequence[dict[str, Any]], licenses: Sequence[str]) -> bytes:
    """Return the bytes of the page.

    Args:
        page: The data card's page.
        configs: The data files, from `list_configs`.
        licenses: The licenses of the dataset.
    """
    metadata = _describe_licenses(licenses)
    # Without a list of data files, the Hub would show receipts as data.
    metadata |= {"configs": list(configs)} if configs else {"viewer": False}
    return f"---\n{yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)}---\n\n{page}".encode()


def _describe_licenses(licenses: Sequence[str]) -> dict[str, Any]:
    if not licenses:
        return {}
    if all(name.lower() in _LICENSES for name in licenses):
        return {"license": [name.lower() for name in licenses]}
    return {"license": "other", "license_name": ", ".join(licenses)}


def _rank_suffix(suffix: str) -> int:
    """Return the rank of a format; the smallest is preferred."""
    return {".parquet": 0, ".arrow": 1}.get(suffix, 2)


def list_configs(receipts: Iterable[Receipt], splits: Collection[str]) -> list[dict[str, Any]]:
    """Return the configuration of each product that has data files; the first is the default of `load_dataset`.

    Args:
        receipts: The receipts of the products.
        splits: Names of the dataset's splits.
    """
    patterns: dict[str, dict[str, dict[str, None]]] = {}
    for receipt in receipts:
        matches = [match for file in receipt.files if (match := _DATA_FILE.fullmatch(file.path)) is not None]
        matches = [match for match in matches if match["split"] in (*splits, *_OTHER_SPLITS)]
        # Use one format, because a view may have the same rows in two.
        suffix = min((match["suffix"] for match in matches), key=_rank_suffix, default="")
        matches = [match for match in matches if match["suffix"] == suffix]
        folder = "/".join(filter(None, (receipt.artifact, receipt.partition)))
        for match in matches:
            part = f"{match['rest'][0]}*" if match["rest"] else ""
            pattern = f"{folder}/{match['start']}{part}{match['suffix']}"
            patterns.setdefault(receipt.artifact, {}).setdefault(match["split"], {})[pattern] = None
    configs: list[dict[str, Any]] = []
    for name, by_split in patterns.items():
        order = [*(split for split in splits if split in by_split), *(s for s in by_split if s not in splits)]
        files = [{"split": split, "path": list(by_split[split])} for split in order]
        config = {"config_name": name, "data_files": files}
        configs.append(config if configs else {**config, "default": True})
    return configs
