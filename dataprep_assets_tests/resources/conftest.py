"""A fixture for tests of the resources: an environment with selected variables."""

import os
from typing import Any

import pytest


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that sets these of the variables that are read, and no others."""

    def use(values: dict[str, str]) -> None:
        for name in [
            n for n in os.environ if n.startswith(("DATAPREP_", "R2_DATASET_", "AWS_", "GOOGLE_", "DATASET_"))
        ]:
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return use
