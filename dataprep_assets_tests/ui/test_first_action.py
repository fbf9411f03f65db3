"""The first action of a new user, by clicks: declare a corpus in an empty project, reload, press one button, all green.

Then a source file breaks, its check or step says so, it is mended, and one re-execution is green again. The other
pipelines are launched as the UI launches them. One server for all.
"""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets_tests.project import SAMPLE, sample_attributes
from dataprep_assets_tests.servers import wait_until
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
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Source files that a test may break."""
    return Path(shutil.copytree(SAMPLE / "data" / "train" / "chunk1", tmp_path_factory.mktemp("source") / "train"))


@pytest.fixture(scope="module")
def corpus(site: ServedProject, browser: Browser, source: Path) -> str:
    """A corpus of one split, declared while the UI was open and shown after a click on "Reload"."""
    declaration = sample_attributes(
        dataset="mine",
        source={"kind": "local", "path": str(source.parent)},
        splits={"train": ["train/**"]},
        views=["nanogpt"],
    )
    browser.open(f"{site.url}/locations", LOCATION, "Reload")
    site.declare("mine", "TokenizedCorpus", declaration)
    browser.click("Reload")
    wait_until(lambda: "mine" in groups(site), 120)
    return "mine"


def groups(site: ServedProject) -> set[str]:
    """The groups of assets that the UI has."""
    return {node["groupName"] for node in site.query("{ assetNodes { groupName } }")["assetNodes"]}


def green(site: ServedProject, dataset: str) -> bool:
    """Whether all of a dataset is there, and every check of it passed on what is there."""
    return all_materialized(site, dataset) and set(checks(site, dataset).values()) == {"SUCCEEDED"}


def run_of_a_click(site: ServedProject, browser: Browser, button: str) -> str:
    """Click a button of the open page that launches a run (the UI shows it in a new tab); the id of that run."""
    before = {run["runId"] for run in site.runs() if run["jobName"] == "build_mine"}

    def launched() -> list[str]:
        return [r["runId"] for r in site.runs() if r["jobName"] == "build_mine" and r["runId"] not in before]

    def clicked() -> bool:
        with contextlib.suppress(AssertionError):  # the page is on its way to what was launched
            browser.click(button)
        return bool(launched())

    wait_until(clicked, 120)
    return launched()[-1]


def launch_by_click(site: ServedProject, browser: Browser) -> str:
    """Launch the job from its Launchpad; the id of the run."""
    browser.open(f"{site.url}/locations/{LOCATION}/jobs/build_mine/playground", "Launch Run", "No errors")
    return run_of_a_click(site, browser, "Launch Run")


def damage(path: Path) -> None:
    """Overwrite some bytes in the middle."""
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(content[:middle] + bytes(40) + content[middle + 40 :])


def test_one_button_makes_and_checks_a_new_corpus(site: ServedProject, browser: Browser, corpus: str) -> None:
    run = launch_by_click(site, browser)
    assert site.wait_for_run(run, 500) == "SUCCESS"
    browser.open(f"{site.url}/runs/{run}", "mine: made and checked")
    browser.picture(site.pictures / "build_job.png")
    assert green(site, corpus)
    browser.open(f"{site.url}/locations/{LOCATION}/asset-groups/mine/lineage", "nanogpt_bins", "100% filled")
    browser.picture(site.pictures / "first_action.png")


_RE_EXECUTE = """[...document.querySelectorAll('button')].map(e => e.textContent.trim())
  .find(text => text.startsWith('Re-execute') || text === 'From failure')"""
"""What the button says depends on how many steps the run has; this job has one."""


def test_a_broken_file_is_told_in_a_sentence_and_one_re_execution_is_green(
    site: ServedProject, browser: Browser, corpus: str, source: Path
) -> None:
    broken = sorted(source.iterdir())[1]
    content = broken.read_bytes()
    damage(broken)
    failed = launch_by_click(site, browser)
    assert site.wait_for_run(failed, 500) == "FAILURE"
    browser.open(f"{site.url}/runs/{failed}", "zstd data is damaged", "Re-execute")
    browser.picture(site.pictures / "broken_file.png")
    broken.write_bytes(content)
    again = run_of_a_click(site, browser, browser.evaluate(_RE_EXECUTE))
    assert site.wait_for_run(again) == "SUCCESS"
    assert green(site, corpus)


_BACKFILL = """mutation($keys: [AssetKeyInput!]!, $shards: [String!]!) {
  launchPartitionBackfill(backfillParams: {assetSelection: $keys, partitionNames: $shards}) {
    __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
_AGAIN = """mutation($id: String!) {
  launchRunReexecution(reexecutionParams: {parentRunId: $id, strategy: FROM_FAILURE}) {
    __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""


def test_a_backfills_failed_run_repairs_itself_although_its_snapshot_was_green(
    site: ServedProject, corpus: str, source: Path
) -> None:
    """The snapshot of the failed run recorded the damaged file: the re-execution makes it anew."""
    broken = sorted(source.iterdir())[1]
    content = broken.read_bytes()
    damage(broken)
    keys = [{"path": [corpus, f"{name}_train"]} for name in ("snapshot", "token_bins")]
    shards = [f"train-{number:05d}" for number in range(3)]
    launched = site.query(_BACKFILL, keys=keys, shards=shards)["launchPartitionBackfill"]

    def runs() -> list[str]:
        return [r["runId"] for r in site.runs() if r["tags"].get("dagster/backfill") == launched["backfillId"]]

    wait_until(lambda: bool(runs()), 120)
    (failed,) = runs()
    assert site.wait_for_run(failed) == "FAILURE"
    broken.write_bytes(content)
    again = site.query(_AGAIN, id=failed)["launchRunReexecution"]
    assert again["__typename"] == "LaunchRunSuccess", again
    assert site.wait_for_run(again["run"]["runId"]) == "SUCCESS"
    assert green(site, corpus)


@pytest.mark.parametrize("name", ["sample_notes", "sample_release", "sample_tasks", "sample_blend_rl"])
def test_the_same_button_makes_and_checks_every_other_kind(site: ServedProject, name: str) -> None:
    """Declared by a copy of its sample's folder, launched as the Launchpad does."""
    defs = PROJECT_ROOT / "dataprep_assets" / "defs"
    for wanted in ("sample_corpus", name):  # the first has the tokenizer and the text of the others
        (sample,) = [path.parent for path in defs.rglob(f"{wanted}/defs.yaml")]
        shutil.copytree(sample, site.defs / sample.relative_to(defs), dirs_exist_ok=True)
    site.reload()
    assert site.wait_for_run(site.launch_job(f"build_{name}"), 500) == "SUCCESS"
    assert all_materialized(site, name)
    assert "FAILED" not in checks(site, name).values()
