"""The first action of a new user, by clicks: declare a corpus in an empty project, reload, press one button, all green.

Then a source file breaks, its check or step says so, it is mended, and one re-execution is green again. The other
pipelines are launched as the UI launches them. One server for all.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataprep_assets_tests.project import SAMPLE, sample_attributes
from dataprep_assets_tests.ui.browser import Browser
from dataprep_assets_tests.ui.first_action import all_materialized, checks
from dataprep_assets_tests.ui.site import LOCATION, ServedProject, scratch_project
from dataprep_assets_tests.ui.site import site as served

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProject]:
    folder = tmp_path_factory.mktemp("first")
    with served(folder / "site", scratch_project(folder / "project"), loaded=False) as made:
        yield made


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Source files that a test may break."""
    return Path(shutil.copytree(SAMPLE / "data" / "train" / "chunk1", tmp_path_factory.mktemp("source") / "train"))


@pytest.fixture(scope="module")
def corpus(site: ServedProject, browser: Browser, source: Path) -> str:
    """A corpus of one split, declared while the UI was open and shown after a click on "Reload"."""
    declaration = sample_attributes(
        dataset="mine", source={"kind": "local", "path": str(source.parent)}, splits={"train": ["train/**"]},
        views=["nanogpt"], olmo_sequence_length=None,
    )  # fmt: skip
    browser.open(f"{site.url}/locations", LOCATION, "Reload")
    site.declare("mine", "TokenizedCorpus", declaration)
    browser.click("Reload")
    browser.open(f"{site.url}/locations/{LOCATION}/asset-groups/mine/lineage", "manifest", "nanogpt_bins")
    return "mine"


def green(site: ServedProject, dataset: str) -> bool:
    """Whether all of a dataset is there, and every check of it passed on what is there."""
    return all_materialized(site, dataset) and set(checks(site, dataset).values()) == {"SUCCEEDED"}


def test_one_button_makes_and_checks_a_new_corpus(site: ServedProject, browser: Browser, corpus: str) -> None:
    browser.open(f"{site.url}/locations/{LOCATION}/jobs/build_mine/playground", "Launch Run")
    browser.click("Launch Run")
    browser.wait_for("Success", "mine: made and checked")
    browser.picture(site.pictures / "build_job.png")
    assert green(site, corpus)
    browser.open(f"{site.url}/locations/{LOCATION}/asset-groups/mine/lineage", "nanogpt_bins", "100% filled")
    browser.picture(site.pictures / "first_action.png")
