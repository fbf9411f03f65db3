"""Use the library `datasets` on folders with a dataset card."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets_tests.readers.families import DATASETS
from dataprep_assets_tests.readers.process import in_process_of


@in_process_of(DATASETS)
def input_ids(directory: Path, cache: Path) -> dict[str, dict[str, Any]]:
    """Return the `rows` of `input_ids` of each split as `load_dataset` orders them, with `feature` and `dtype`."""
    import datasets

    loaded = datasets.load_dataset(str(directory), cache_dir=str(cache))
    return {
        split: {
            "rows": rows["input_ids"][:],
            "feature": str(rows.features["input_ids"]),
            "dtype": rows.features["input_ids"].feature.dtype,
        }
        for split, rows in loaded.items()
    }


@in_process_of(DATASETS)
def sizes(directory: Path, cache: Path) -> dict[str, Any]:
    """Return rows and bytes of each split: as the card `says`, as the library `counted` them, and its `warnings`."""
    import logging

    import datasets

    warned: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warned.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("datasets").addHandler(handler)
    try:
        described = datasets.load_dataset_builder(str(directory), cache_dir=str(cache)).info.splits
        loaded = datasets.load_dataset(str(directory), cache_dir=str(cache))
    finally:
        logging.getLogger("datasets").removeHandler(handler)
    counted = next(iter(loaded.values())).info.splits
    both = {"says": described, "counted": counted}
    return {"warnings": warned} | {
        whose: {name: (split.num_examples, split.num_bytes) for name, split in splits.items()}
        for whose, splits in both.items()
    }


@in_process_of(DATASETS)
def rows_of(directory: Path, split: str, column: str, cache: Path) -> list[list[int]]:
    """Return a column of a split, in order. MaxText streams it, for which the library imports torch."""
    import datasets

    return list(datasets.load_dataset(str(directory), split=split, cache_dir=str(cache))[column])


@in_process_of(DATASETS)
def saved(folder: Path, rows: list[dict[str, Any]], kept: list[int], shards: int) -> list[dict[str, Any]]:
    """Save a selection of rows as the split `train` of a folder, and return its rows as the library loads them."""
    import datasets

    chosen = datasets.Dataset.from_list(rows).select(kept)
    datasets.DatasetDict({"train": chosen}).save_to_disk(str(folder), num_shards={"train": shards})
    return list(datasets.load_from_disk(str(folder))["train"])


@in_process_of(DATASETS)
def both_ways(directory: Path, cache: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each split, which `load_from_disk` and `load_dataset` must read equally."""
    import datasets

    mapped = datasets.load_from_disk(str(directory))
    loaded = datasets.load_dataset(str(directory), cache_dir=str(cache))
    rows = {split: list(part) for split, part in mapped.items()}
    assert rows == {split: list(part) for split, part in loaded.items()}
    assert {split: part.column_names for split, part in mapped.items()} == loaded.column_names
    return rows


@in_process_of(DATASETS)
def fingerprints(directory: Path) -> dict[str, str]:
    """Return the fingerprint of each split, on which caches of `map` depend."""
    import datasets

    return {split: part._fingerprint for split, part in datasets.load_from_disk(str(directory)).items()}


@in_process_of(DATASETS)
def all_rows(directory: Path, cache: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each split of a folder with a card, as the library gives them to a trainer."""
    import datasets

    return {split: list(rows) for split, rows in datasets.load_dataset(str(directory), cache_dir=str(cache)).items()}


def load_from_hub(repo: str, revision: str, endpoint: str, home: Path) -> dict[str, dict[str, list[Any]]]:
    """Return the columns of each split of a repository, as `load_dataset` loads them from the Hub at `endpoint`.

    The Hub's client reads its environment only once, so every call has a process of its own.
    """
    if DATASETS.missing:
        pytest.skip(DATASETS.missing)
    program = (
        "import datasets, json, sys\n"
        "loaded = datasets.load_dataset(sys.argv[1], revision=sys.argv[2])\n"
        "print(json.dumps({split: rows.to_dict() for split, rows in loaded.items()}))"
    )
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_TOKEN": "secret",
    }
    arguments = [sys.executable, "-c", program, repo, revision]
    ended = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    loaded: dict[str, dict[str, list[Any]]] = json.loads(ended.stdout.splitlines()[-1])
    return loaded
