"""Every direct requirement has a lower bound, which `make test-lowest` installs."""

import re
import tomllib
from pathlib import Path

from dataprep_assets_tests.tools.lowest import lowest

DEPENDENCIES = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["dependencies"]


def test_each_requirement_is_pinned_to_its_lower_bound() -> None:
    held = dict(line.split("==") for line in lowest(DEPENDENCIES))
    exact = {re.split("==", one)[0] for one in DEPENDENCIES if "==" in one}
    names = {re.match(r"[A-Za-z0-9._-]+", one)[0] for one in DEPENDENCIES}  # type: ignore[index]
    assert {*held} | exact == names
    assert held["typer"] == "0.20"
    assert held["dagster"] == "1.12.13"
