"""Click like a user in Dagster's UI: a job's button, "Materialize all", a backfill's menu."""

import contextlib
from collections.abc import Callable

from dataprep_assets_tests.servers import wait_until
from dataprep_assets_tests.ui.browser import Browser
from dataprep_assets_tests.ui.site import LOCATION, ServedProject

_RE_EXECUTE = """[...document.querySelectorAll('button')].map(e => e.textContent.trim())
  .find(text => text.startsWith('Re-execute') || text === 'From failure')"""
"""The label of the button depends on the number of steps of the run; a dataset's job has one."""
_MENU = """[...document.querySelectorAll('button')].find(
  e => !e.textContent.trim() && e.querySelector('[aria-label="expand_more"]'))"""
_LAUNCHABLE = """[...document.querySelectorAll('button')].some(
  e => e.textContent.trim() === 'Launch backfill' && !e.disabled)"""


def launch_job(site: ServedProject, browser: Browser, dataset: str) -> str:
    """Launch the job of a dataset from its Launchpad, and return the id of the run."""
    page = f"{site.url}/locations/{LOCATION}/jobs/build_{dataset}/playground"
    browser.open(page, "Launch Run", "No errors")
    return _run_of(site, browser, dataset, "Launch Run")


def re_execute(site: ServedProject, browser: Browser, dataset: str, run: str) -> str:
    """Re-execute a failed run of a dataset's job from the run's page, and return the id of the new run."""
    browser.open(f"{site.url}/runs/{run}", "Re-execute")
    return _run_of(site, browser, dataset, browser.evaluate(_RE_EXECUTE))


def materialize_all(site: ServedProject, browser: Browser, dataset: str, partitions: int) -> str:
    """Press "Materialize all" in the group of a dataset of one split, with all its partitions; return the backfill's
    id.
    """
    browser.open(f"{site.url}/locations/{LOCATION}/asset-groups/{dataset}/lineage", "Materialize all…")
    browser.click("Materialize all…")
    browser.wait_for("Launch backfill", "Partition selection")
    browser.click("All")
    browser.wait_for(f"{partitions} partitions")
    wait_until(lambda: bool(browser.evaluate(_LAUNCHABLE)), 60)
    return _made(browser, "Launch backfill", lambda: set(site.backfills()))


def cancel_backfill(site: ServedProject, browser: Browser, backfill: str) -> None:
    """Cancel a backfill from the menu of its page, and wait until it is canceled."""
    _choose(site, browser, backfill, "Cancel backfill")
    browser.wait_for("In progress runs associated with this backfill will be canceled")
    browser.click("Cancel backfill")
    browser.wait_for("Cancel")
    browser.rest()
    wait_until(lambda: site.backfills()[backfill] == "CANCELED", 240)


def resume_backfill(site: ServedProject, browser: Browser, backfill: str) -> str:
    """Resume a canceled backfill from the menu of its page as another backfill, and return that one's id."""
    _choose(site, browser, backfill)
    return _made(browser, "Re-execute from failure", lambda: set(site.backfills()))


def _choose(site: ServedProject, browser: Browser, backfill: str, entry: str | None = None) -> None:
    """Open the menu of a backfill's page, and click one of its entries."""
    browser.open(f"{site.url}/runs/b/{backfill}", backfill)
    wait_until(lambda: bool(browser.evaluate(f"{_MENU} ? ({_MENU}.click(), true) : false")), 60)
    browser.wait_for("Re-execute from failure", "Cancel backfill")
    if entry is not None:
        browser.click(entry)


def _run_of(site: ServedProject, browser: Browser, dataset: str, button: str) -> str:
    """Click a button of the open page that launches a run of a job (the UI shows it in a new tab); return the
    run's id.
    """
    job = f"build_{dataset}"
    return _made(browser, button, lambda: {run["runId"] for run in site.runs() if run["jobName"] == job})


def _made(browser: Browser, button: str, there: Callable[[], set[str]]) -> str:
    """Click until there is one more run or backfill, and return its id.

    Then leave the page, whose drawings cost a core.
    """
    before = there()

    def clicked() -> bool:
        with contextlib.suppress(AssertionError):  # the button may appear a moment after its label
            browser.click(button)
            wait_until(lambda: bool(there() - before), 30)
        return bool(there() - before)

    wait_until(clicked, 120)
    browser.rest()
    (new,) = there() - before
    return new
