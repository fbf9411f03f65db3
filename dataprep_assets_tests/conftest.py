"""Fixtures for every test: where the shared data lies."""

import os
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder `../shared` beside the checkout, or DATAPREP_SHARED; the test is skipped without it."""
    folder = Path(os.environ.get("DATAPREP_SHARED") or CHECKOUT.parent / "shared")
    if not (folder / "data" / "corpus").is_dir():
        pytest.skip(f"no shared data: {folder}/data/corpus is not there; set DATAPREP_SHARED to a folder that has it")
    return folder
