"""The pages of the site in a real browser: no script error, no overflow, quick to load, hostile text shown as text.

`DATAPREP_PICTURES=folder` keeps the screenshots, from which the pictures of the pages are made.
"""

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import uvicorn
from starlette.applications import Starlette

from dataprep_assets.site.build import write_site
from dataprep_assets.site.dataset import gather_facts
from dataprep_assets.site.folder import INDEX, SITE
from dataprep_assets.site.overview import describe_overview
from dataprep_assets.site.pages import Link, PageEnvironment
from dataprep_assets.site.partitions import STATES, Cell, PartitionGrid
from dataprep_assets.site.states import summarize_datasets
from dataprep_assets.site.stored import StoredDataset
from dataprep_assets.webserver.site import build_site_route
from dataprep_assets_tests.project import project, sample_attributes
from dataprep_assets_tests.servers import free_port, wait_until
from dataprep_assets_tests.site.records import make_history, make_states
from dataprep_assets_tests.ui.browser import Browser

pytestmark = pytest.mark.slow
WIDTHS, LOAD_SECONDS = (390, 800, 1280), 2.0
HOSTILE = "<img src=x onerror=document.title='hacked'>"
_WATCH = """window.problems = [];
addEventListener('error', (event) => problems.push(event.message || 'a resource failed: ' + event.target.src), true);
addEventListener('securitypolicyviolation', (event) => problems.push('policy: ' + event.violatedDirective));"""
"""Collects the errors of a page before its own scripts run."""
_OVERFLOW = """[...document.querySelectorAll('main *')].filter((e) => e.getBoundingClientRect().right > innerWidth + 1
  && !e.closest('.scroll, figure, pre, .text')).map((e) => e.outerHTML.slice(0, 200))"""
"""The elements that reach beyond the window, except in boxes that scroll."""


@dataclass(frozen=True)
class ServedPages:
    """A server of pages.

    Attributes:
        url: Address of the site.
        folder: Folder of the site.
        paths: Paths of the pages to look at.
    """

    url: str
    folder: Path
    paths: tuple[str, ...]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPages]:
    """Serve a real corpus with hostile names and texts, and simulated records of many datasets."""
    folder = tmp_path_factory.mktemp("pages")
    paths = write_pages(folder)
    port = free_port()
    application = Starlette(routes=[build_site_route(folder)])
    server = uvicorn.Server(uvicorn.Config(application, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started, 60, every=0.1)
    yield ServedPages(f"http://127.0.0.1:{port}/site", folder / SITE, paths)
    server.should_exit = True
    thread.join()


def write_pages(root: Path) -> tuple[str, ...]:
    """Write the site of a project, and return the paths of its pages and of pages with simulated records."""
    source = root / "source" / "train"
    source.mkdir(parents=True)
    rows = [{"text": f"{HOSTILE}</script><script>document.title='hacked'</script> row {at}"} for at in range(300)]
    for at in range(3):
        lines = [json.dumps(row) + "\n" for row in rows[at::3]]
        (source / f"{at}{HOSTILE.replace('/', '')}.jsonl").write_text("".join(lines))
    attributes = sample_attributes(
        dataset="web",
        source={"kind": "local", "path": str(source.parent)},
        splits={"train": ["train/**"]},
        include=["**/*.jsonl"],
        description=HOSTILE,
        owners=["team:data"],
        views=["nanogpt"],
    )
    with project(attributes, root / "corpus") as made:
        made.run_all()
        dataset = StoredDataset(made.component, made.store)
        report = write_site(root, [dataset], made.instance, broken={})
        assert report.errors == {}
        (state,) = summarize_datasets([dataset], made.instance, {"web": make_history(365)})
    facts = gather_facts(dataset, state)
    cells = tuple(Cell(f"train-{at:05}", ("good", "warn", "bad")[at % 3], f"train-{at:05}") for at in range(2_000))
    counts = {"token_bins": ("667", "0", "667", "0", "666")}
    grid = PartitionGrid(
        title="token_bins", noun="shards", number="2,000 shards", counts=counts, cells=cells, pending=()
    )
    environment = PageEnvironment(root="../../", navigation=(Link("Overview", "../../index.html"),))
    page = environment.render("dataset.html.j2", title="year", facts=replace(facts, grids=(grid,)), states=STATES)
    (root / SITE / "datasets" / "year").mkdir()
    (root / SITE / "datasets" / "year" / INDEX).write_text(page)
    overview = describe_overview(list(make_states(60, 365)), {"broken": HOSTILE})
    (root / SITE / "many.html").write_text(
        overview.render(PageEnvironment(navigation=(Link("Overview", INDEX, True),)))
    )
    return (*(path for path in report.written_files if path.endswith(".html")), "datasets/year/index.html", "many.html")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Return a headless Chromium with its own profile; skip the tests without one."""
    made = Browser(tmp_path_factory.mktemp("profile"))
    made.call("Page.enable")
    made.call("Page.addScriptToEvaluateOnNewDocument", source=_WATCH)
    yield made
    made.close()


def show(browser: Browser, url: str, width: int, scheme: str) -> None:
    """Open a page in a window of a width and with a preferred color scheme, and wait until it is loaded."""
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.call("Page.navigate", url=url)
    wait_until(lambda: browser.evaluate("location.href") == url and is_loaded(browser), 60, every=0.05)


def is_loaded(browser: Browser) -> bool:
    return (browser.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd") or 0) > 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_renders(pages: ServedPages, browser: Browser, width: int, scheme: str) -> None:
    pictures = os.environ.get("DATAPREP_PICTURES")
    assert "datasets/web/data/kept.html" in pages.paths
    for path in pages.paths:
        show(browser, f"{pages.url}/{path}", width, scheme)
        assert browser.evaluate("problems") == [], path
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        assert browser.evaluate(_OVERFLOW) == [], path
        assert browser.evaluate("document.title") != "hacked"
        assert browser.evaluate("document.querySelectorAll('img, iframe, script:not([src])').length") == 0
        background = browser.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        assert (sum(background) < 200) == (scheme == "dark"), path
        if pictures:
            name = path.removesuffix(".html").replace("/", "_")
            browser.picture(Path(pictures) / f"site_{name}_{width}_{scheme}.png")


def test_hostile_names_and_texts_are_shown_as_text(pages: ServedPages, browser: Browser) -> None:
    show(browser, f"{pages.url}/datasets/web/data/kept.html", 1280, "light")
    text = browser.evaluate("document.body.innerText")
    assert f"{HOSTILE}</script><script>" in text
    assert f"train/0{HOSTILE}" in text


@pytest.mark.parametrize("path", ["many.html", "datasets/year/index.html"])
def test_a_year_of_many_datasets_and_partitions_loads_quickly(pages: ServedPages, browser: Browser, path: str) -> None:
    show(browser, f"{pages.url}/{path}", 1280, "light")
    seconds = browser.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd") / 1000
    assert seconds < LOAD_SECONDS
    if path == "many.html":
        assert browser.evaluate("document.querySelectorAll('#datasets tbody tr').length") == 60
    else:
        assert browser.evaluate("document.querySelectorAll('.grid i').length") >= 2_000


_SHOWN = "[...document.querySelectorAll('#datasets tbody tr')].filter((row) => row.offsetParent).length"


def choose(browser: Browser, name: str, value: str) -> None:
    """Set a field of the form with filters, as a user does."""
    browser.evaluate(
        f"(() => {{ const field = document.querySelector('form [name={name}]'); field.value = {json.dumps(value)};"
        "field.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )


def test_the_overview_is_filtered_by_name_state_owner_and_kind(pages: ServedPages, browser: Browser) -> None:
    show(browser, f"{pages.url}/many.html", 1280, "light")
    assert browser.evaluate(_SHOWN) == 60
    states = list(make_states(60, 1))
    for name, value, expected in (
        ("text", "WEB_1", sum("web_1" in state.dataset for state in states)),
        ("state", "failed", sum(state.level == "failed" for state in states)),
        ("owners", "team:data", sum("team:data" in state.owners for state in states)),
        ("kind", "TrainingBlend", sum(state.kind == "TrainingBlend" for state in states)),
    ):
        choose(browser, name, value)
        assert browser.evaluate(_SHOWN) == expected, name
        choose(browser, name, "")
    assert browser.evaluate(_SHOWN) == 60


def test_links_to_dagster_are_shown_only_below_the_address_of_the_ui(pages: ServedPages, browser: Browser) -> None:
    show(browser, f"{pages.url}/many.html", 1280, "light")
    link = "document.querySelector('#datasets a[data-dagster]')"
    assert browser.evaluate(f"{link}.hidden") is False
    assert browser.evaluate(f"{link}.pathname").startswith("/assets/corpus_of_the_web_")
    assert browser.evaluate("document.querySelector('form[data-filter]').hidden") is False


def test_the_folder_works_without_a_server(pages: ServedPages, browser: Browser) -> None:
    show(browser, (pages.folder / INDEX).as_uri(), 800, "light")
    assert browser.evaluate("problems") == []
    assert browser.evaluate("document.querySelector('a[data-dagster]').hidden") is True
    browser.click("web")
    browser.wait_for("Kept")
    assert browser.evaluate("getComputedStyle(document.querySelector('.state')).borderRadius") != "0px", "no style"
