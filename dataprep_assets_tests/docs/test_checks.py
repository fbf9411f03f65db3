"""`docs/checks.md` matches the current checks and gives a remedy for each failure."""

import re

from dataprep_assets.engine.artifact.spec import PERMISSIONS_PRIVATE
from dataprep_assets_tests.docs import checks


def test_the_page_is_up_to_date() -> None:
    assert checks.PAGE.read_text(encoding="utf-8") == checks.page(), "run `make docs-reference`"


def test_every_check_has_exactly_one_remedy() -> None:
    said = [name for joined, _ in checks.REMEDIES for name in joined.split()]
    assert sorted(said) == sorted(checks.names())


def test_every_check_of_the_code_is_on_the_page() -> None:
    """Includes checks that no sample has: names are collected where checks are declared."""
    package = checks.ROOT / "dataprep_assets"
    text = "\n".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py"))
    declared = set(re.findall(r'\bCheck(?:\[[^(]*\])?\(\s*"(\w+)"', text)) - {PERMISSIONS_PRIVATE.name}
    assert len(declared) > 60
    assert declared - checks.names() == set()
