"""A user's actions and views, by clicks in a real browser, on one instance that is empty at first.

A corpus is declared, built by one button, broken, repaired and re-executed; an appended file is picked up; a backfill
is canceled and resumed; a killed job is launched again; every other kind is built by the same button; at the end the
pages of the results are inspected. All tests share one server, and unused pages are left, because both cost a core.

`DATAPREP_PICTURES=folder` keeps the screenshots, from which the pictures of the README and the pages are made.
"""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets.orchestration.partitions import DATASET
from dataprep_assets.orchestration.runs.runs import POOLS
from dataprep_assets.orchestration.sensors.automation import CHANGE
from dataprep_assets.orchestration.sensors.freshness import FRESH
from dataprep_assets.site.asset import ADDRESS
from dataprep_assets.site.folder import INDEX, SITE
from dataprep_assets_tests.deploy.backfill import read_run_pid
from dataprep_assets_tests.deploy.tiny_corpus import make_attributes, write_corpus
from dataprep_assets_tests.fakes.listeners import run_webhook
from dataprep_assets_tests.project import sample_attributes
from dataprep_assets_tests.samples import SAMPLE
from dataprep_assets_tests.servers import wait_until
from dataprep_assets_tests.ui.browser import Browser
from dataprep_assets_tests.ui.clicks import cancel_backfill, launch_job, materialize_all, re_execute, resume_backfill
from dataprep_assets_tests.ui.hostile_page import ASSET, POOL, hostile_page
from dataprep_assets_tests.ui.site import LOCATION, ServedProject, scratch_project
from dataprep_assets_tests.ui.site import site as served

pytestmark = pytest.mark.slow
SHIPPED = PROJECT_ROOT / "dataprep_assets" / "defs"
TRAIN = SAMPLE / "data" / "train"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProject]:
    folder = tmp_path_factory.mktemp("ui")
    with served(folder / "site", scratch_project(folder)) as made:
        made.stop_sensor("datasets_sensor")  # after every run it would launch one more
        yield made


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Return a headless Chromium with its own profile; skip the tests without one."""
    made = Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def rested(browser: Browser) -> Iterator[None]:
    yield
    browser.rest()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return source files that a test may break."""
    return Path(shutil.copytree(TRAIN / "chunk1", tmp_path_factory.mktemp("source") / "train"))


@pytest.fixture(scope="module")
def declaration(source: Path) -> dict[str, Any]:
    """Return the declaration of a corpus of one split, over the source files."""
    return sample_attributes(
        dataset="mine",
        source={"kind": "local", "path": str(source.parent)},
        splits={"train": ["train/**"]},
        views=["nanogpt"],
    )


@pytest.fixture(scope="module")
def corpus(site: ServedProject, browser: Browser, declaration: dict[str, Any]) -> str:
    """Return that corpus, declared while the UI was open and shown after a click on "Reload"."""
    browser.open(f"{site.url}/locations", LOCATION, "Reload")
    site.declare("mine", "TokenizedCorpus", declaration)
    browser.click("Reload")
    wait_until(lambda: "mine" in site.groups, 300)
    return "mine"


def is_green(site: ServedProject, dataset: str) -> bool:
    """Return whether all artifacts of a dataset exist, and every check passed on them."""
    return site.all_materialized(dataset) and set(site.checks(dataset).values()) == {"SUCCEEDED"}


def damage(path: Path) -> None:
    """Overwrite some bytes in the middle."""
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(content[:middle] + bytes(40) + content[middle + 40 :])


KILLED = "killed"
"""The dataset whose run is killed."""
KINDS = ("sample_notes", "sample_blend_rl")
"""Samples that are built by the same button as a corpus."""


@pytest.fixture(scope="module")
def shipped(site: ServedProject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Declare copies of samples and a dataset of 40 shards. They share one reload, because each starts a process."""
    for name in ("sample_corpus", *KINDS):  # the first dataset has the tokenizer and the text of the others
        (sample,) = [path.parent for path in SHIPPED.rglob(f"{name}/defs.yaml")]
        shutil.copytree(sample, site.defs / sample.relative_to(SHIPPED), dirs_exist_ok=True)
    source = write_corpus(tmp_path_factory.mktemp(KILLED), 40)
    site.declare(KILLED, "TokenizedCorpus", make_attributes(source, 40, dataset=KILLED))
    site.reload()


def test_one_button_builds_and_checks_a_new_corpus(site: ServedProject, browser: Browser, corpus: str) -> None:
    run = launch_job(site, browser, corpus)
    assert site.wait_for_run(run, 500) == "SUCCESS"
    browser.open(f"{site.url}/runs/{run}", "manifest", "token_bins_train", "nanogpt_bins", "RUN_SUCCESS")
    browser.picture(site.pictures / "build_job.png")
    assert is_green(site, corpus)
    browser.open(f"{site.url}/locations/{LOCATION}/asset-groups/mine/lineage", "nanogpt_bins", "100% filled")
    browser.picture(site.pictures / "first_action.png")


def test_a_broken_file_is_reported_in_a_sentence_and_one_re_execution_repairs_it(
    site: ServedProject, browser: Browser, corpus: str, source: Path
) -> None:
    broken = sorted(source.iterdir())[1]
    content = broken.read_bytes()
    damage(broken)
    failed = launch_job(site, browser, corpus)
    assert site.wait_for_run(failed, 500) == "FAILURE"
    browser.open(f"{site.url}/runs/{failed}", "zstd data is damaged", "Re-execute")
    browser.picture(site.pictures / "broken_file.png")
    broken.write_bytes(content)
    again = re_execute(site, browser, corpus, failed)
    assert site.wait_for_run(again) == "SUCCESS"
    assert is_green(site, corpus)


_BACKFILL = """mutation($keys: [AssetKeyInput!]!, $shards: [String!]!) {
  launchPartitionBackfill(backfillParams: {assetSelection: $keys, partitionNames: $shards}) {
    __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
_AGAIN = """mutation($id: String!) {
  launchRunReexecution(reexecutionParams: {parentRunId: $id, strategy: FROM_FAILURE}) {
    __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""


def test_a_backfill_builds_missing_shards_and_its_failed_run_repairs_itself(
    site: ServedProject, corpus: str, source: Path
) -> None:
    """The snapshot of the failed run recorded the damaged file and passed, so the re-execution rebuilds it."""
    shards = [f"train-{number:05d}" for number in range(3)]
    files = {shard: site.root / corpus / "token_bins" / shard / "tokens.bin" for shard in shards}
    before = {shard: (path.stat().st_ino, path.read_bytes()) for shard, path in files.items()}
    files[shards[0]].unlink()
    broken = sorted(source.iterdir())[1]
    content = broken.read_bytes()
    damage(broken)
    keys = [{"path": [corpus, f"{name}_train"]} for name in ("snapshot", "token_bins")]
    launched = site.query(_BACKFILL, keys=keys, shards=shards)["launchPartitionBackfill"]
    wait_until(lambda: bool(site.runs_with("dagster/backfill", launched["backfillId"])), 120)
    (failed,) = site.runs_with("dagster/backfill", launched["backfillId"])
    assert site.wait_for_run(failed) == "FAILURE"
    assert files[shards[0]].read_bytes() == before[shards[0]][1], "what can be made is made"
    broken.write_bytes(content)
    again = site.query(_AGAIN, id=failed)["launchRunReexecution"]
    assert again["__typename"] == "LaunchRunSuccess", again
    assert site.wait_for_run(again["run"]["runId"]) == "SUCCESS"
    assert is_green(site, corpus)
    assert {shard: path.read_bytes() for shard, path in files.items()} == {s: b for s, (_, b) in before.items()}
    made_again = {shard for shard, path in files.items() if path.stat().st_ino != before[shard][0]}
    assert made_again <= {shards[0], shards[1]}


def test_an_appended_file_is_built_while_the_sensor_is_on(
    site: ServedProject, browser: Browser, corpus: str, declaration: dict[str, Any], source: Path
) -> None:
    site.command("run", corpus)  # an earlier test may have done this already
    sensor = f"{corpus}_on_new_files"

    def said() -> list[str]:
        return [tick["skipReason"] or "" for tick in site.ticks(sensor)]

    with run_webhook() as hook:
        automation = {"on_new_files": "5s", "freshness": "20m", "on_failure": {"webhook": hook.url}}
        site.declare(corpus, "TokenizedCorpus", {**declaration, "automation": automation})
        site.reload()
        browser.open(f"{site.url}/locations/{LOCATION}/sensors/{sensor}", "0 runs requested")
        wait_until(lambda: "the source matches the plan" in said(), 60)  # the tick may still be running
        shutil.copy(
            TRAIN / "chunk2" / sorted(path.name for path in (TRAIN / "chunk2").iterdir())[0], source / "z.jsonl.zst"
        )
        browser.wait_for("1 run requested")
        browser.picture(site.pictures / "sensor.png")
        (launched,) = [run for run in site.runs() if CHANGE in run["tags"]]
        assert launched["tags"][CHANGE] == "1 file added, 1 shard new"
        browser.rest()
        assert site.wait_for_run(launched["runId"]) == "SUCCESS"
        browser.open(f"{site.url}/assets/mine/token_bins_train?view=partitions", "train-00003")
        browser.rest()
        wait_until(lambda: said()[0] == "nothing changed since the last poll", 120)
        assert site.all_materialized(corpus)
        assert f"{corpus}/nanogpt_bins: {FRESH}" in site.checks(corpus)
        wait_until(lambda: is_green(site, corpus), 240)  # the freshness sensor polls once per minute
        assert hook.got == []
    site.declare(corpus, "TokenizedCorpus", declaration)


TINY = 60
"""The number of shards, for two runs."""


@pytest.mark.timeout(1200)  # the test runs two backfills, and each backfill waits for ticks of the daemon
def test_materialize_all_is_canceled_half_way_and_the_rest_resumed(
    site: ServedProject, browser: Browser, tmp_path: Path
) -> None:
    site.declare("tiny", "TokenizedCorpus", make_attributes(write_corpus(tmp_path / "tiny", TINY), TINY))
    site.reload()
    bins = dg.AssetKey(["tiny", "token_bins_train"])
    with site.instance() as instance:
        # A sensor launches the run that plans the shards.
        wait_until(lambda: len(instance.get_dynamic_partitions("tiny_train_shards")) == TINY, 240)
        site.stop_sensor("plan_new_datasets")  # each further dataset that it plans would cost a run
        first = materialize_all(site, browser, "tiny", TINY)
        wait_until(lambda: bool(instance.get_materialized_partitions(bins)), 300, every=0.2)
        # Make the next run wait in the queue when the user cancels the backfill, because runs also wait in a large
        # backfill.
        instance.event_log_storage.set_concurrency_slots(POOLS["cpu"], 0)
        cancel_backfill(site, browser, first)
        made = instance.get_materialized_partitions(bins)
        receipts = {path: path.stat().st_ino for path in (site.root / "tiny" / "token_bins").glob("*/receipt.json")}
        assert 0 < len(made) < TINY
        assert made <= {path.parent.name for path in receipts}
        instance.event_log_storage.set_concurrency_slots(POOLS["cpu"], 1)
        second = resume_backfill(site, browser, first)
        wait_until(lambda: site.backfills()[second] == "COMPLETED_SUCCESS", 600)
    assert {path: path.stat().st_ino for path in receipts} == receipts, "what was finished was kept"
    browser.open(f"{site.url}/runs/b/{second}", "nanogpt_bins")
    browser.picture(site.pictures / "resumed.png")
    assert is_green(site, "tiny")


@pytest.mark.usefixtures("shipped")
def test_a_job_that_is_killed_half_way_is_launched_again_and_succeeds(site: ServedProject) -> None:
    run = site.launch_job(f"build_{KILLED}")
    wait_until(lambda: any((site.root / KILLED / "token_bins").glob("*/receipt.json")), 240, every=0.1)
    with site.instance() as instance:
        pid = read_run_pid(instance, run)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    assert site.wait_for_run(run) == "FAILURE"
    wait_until(lambda: bool(site.runs_with("dagster/parent_run_id", run)), 120)
    (again,) = site.runs_with("dagster/parent_run_id", run)
    assert site.wait_for_run(again) == "SUCCESS", "what the killed run held is free"
    assert is_green(site, KILLED)
    states = {run["status"] for run in site.runs() if run["tags"].get(DATASET) == KILLED}
    assert states == {"SUCCESS", "FAILURE"}, "nothing is said to be in progress"


@pytest.mark.usefixtures("shipped")
@pytest.mark.parametrize("name", KINDS)
def test_the_same_button_builds_and_checks_every_other_kind(site: ServedProject, browser: Browser, name: str) -> None:
    assert site.wait_for_run(launch_job(site, browser, name), 500) == "SUCCESS"
    assert site.all_materialized(name)
    assert "FAILED" not in site.checks(name).values()


_DRAWN = "[...document.querySelectorAll('img')].filter(i => i.src.startsWith('data:image/svg+xml'))"


@pytest.mark.parametrize(
    ("asset", "entry"),
    [("blend_preview", "requested_and_realizable_shares"), ("blend", "requested_and_realized_shares")],
)
def test_the_shares_of_a_blend_are_drawn(site: ServedProject, browser: Browser, asset: str, entry: str) -> None:
    """The UI keeps markdown of this length behind a click."""
    browser.open(f"{site.url}/assets/sample_blend_rl/{asset}?view=overview", entry, "[Show Markdown]")
    rows = f"[...document.querySelectorAll('tr')].filter(r => r.innerText.includes({json.dumps(entry)}))"
    link = f"[...{rows}.pop().querySelectorAll('*')].filter(e => e.textContent.trim() === '[Show Markdown]').pop()"

    def drawn() -> bool:
        if not browser.evaluate(f"{_DRAWN}.length"):
            browser.evaluate(f"{link}.click()")  # retried if the page replaced the row meanwhile
        # `naturalWidth` is 0 for a picture that the browser cannot draw.
        return bool(browser.evaluate(f"{_DRAWN}.length === 1 && {_DRAWN}[0].naturalWidth > 400"))

    wait_until(drawn, 180)
    assert browser.evaluate(f"{_DRAWN}[0].naturalHeight") > 100
    assert browser.evaluate(f"{_DRAWN}[0].getBoundingClientRect().width") > 200
    browser.picture(site.pictures / f"{asset}_shares.png")


@pytest.fixture(scope="module")
def sample(site: ServedProject, shipped: None) -> str:
    """Build the sample corpus with the command."""
    site.command("run", "sample_corpus")
    return "sample_corpus"


def test_the_graph_shows_every_artifact_materialized_and_checked(
    site: ServedProject, browser: Browser, sample: str
) -> None:
    names = ("manifest", "engine_certificate", "snapshot", "token_bins", "combined_bins", "nanogpt_bins")
    url = f"{site.url}/locations/{LOCATION}/asset-groups/sample_corpus/lineage"
    browser.open(url, *names, "10 / 10 Passed", "9 / 9 Passed", "100% filled")
    browser.picture(site.pictures / "graph.png")


def test_a_partition_shows_its_numbers(site: ServedProject, browser: Browser, sample: str) -> None:
    url = f"{site.url}/assets/sample_corpus/token_bins_train?partition=train-00001&view=partitions"
    browser.open(url, "train-00002", "tokens", "documents", "tokens_per_cpu_second", "dropped", "source_bytes")
    browser.picture(site.pictures / "partitions.png")


def test_the_numbers_of_an_asset_are_plotted(site: ServedProject, browser: Browser, sample: str) -> None:
    browser.open(f"{site.url}/assets/sample_corpus/token_bins_train?view=overview", "Plots", "tokens_per_cpu_second")

    def plotted() -> bool:
        canvases = int(browser.evaluate("document.querySelectorAll('canvas').length"))
        if not canvases:
            browser.click("Plots")  # retried if the page was reloaded meanwhile
        return canvases >= 4

    wait_until(plotted, 180)
    browser.picture(site.pictures / "plots.png")


def test_a_check_shows_its_table(site: ServedProject, browser: Browser, sample: str) -> None:
    url = f"{site.url}/assets/sample_corpus/combined_bins_train?view=checks&checkDetail=looks_like_text"
    browser.open(url, "looks_like_text", "bits_per_token", "Passed", "decode to plausible text")
    browser.picture(site.pictures / "eye_test.png")


def test_the_run_of_the_command_has_a_page_with_a_step_for_each_artifact(
    site: ServedProject, browser: Browser, sample: str
) -> None:
    (run,) = site.runs_with("dataprep/dataset", "sample_corpus")[-1:]
    browser.open(f"{site.url}/runs/{run}", "manifest", "token_bins_train", "nanogpt_bins")
    browser.picture(site.pictures / "run.png")


def test_the_site_leads_to_a_failed_check(site: ServedProject, browser: Browser, sample: str) -> None:
    site.declare("broken", "TokenizedCorpus", {"spilts": {}})
    site.reload()
    card = site.root / "sample_corpus" / "data_card" / "dataset_card.md"
    card.write_text(card.read_text() + "\nNobody's word.\n")
    browser.open(f"{site.url}/assets/sample_corpus/data_card?view=checks", "card_matches_receipts", "Execute all")
    browser.click("Execute all")
    browser.wait_for("dataset_card.md: line")

    browser.open(f"{site.url}/assets", "datasets")
    browser.click("datasets")
    browser.wait_for("checks failed", "Materialize")
    browser.click("Materialize")
    # The sensor may have written the pages before.
    index = site.project / SITE / INDEX
    wait_until(lambda: index.is_file() and "card_matches_receipts" in index.read_text(), 180)
    browser.open(
        f"{site.url}{ADDRESS}", "data_card: card_matches_receipts", "dataset_card.md: line", "cannot be loaded"
    )
    link = "a[data-dagster^='assets/sample_corpus/data_card']"
    browser.evaluate(f'document.querySelector("{link}").click()')
    browser.wait_for("Evaluation result", "card_matches_receipts", "dataset_card.md: line")
    place = browser.evaluate("location.pathname + location.search")
    assert place == "/assets/sample_corpus/data_card?view=checks&checkDetail=card_matches_receipts"


_STATE = """{ instance { concurrencyLimits { concurrencyKey } }
  assetsOrError { ... on AssetConnection { nodes { key { path } } } } }"""


def test_a_page_of_another_origin_can_send_no_mutation_and_no_report(site: ServedProject, browser: Browser) -> None:
    with hostile_page(site.url) as page:
        browser.open(page, "all was tried")
        tried = json.loads(browser.evaluate("document.title"))
    assert tried["json"] == tried["socket"] == "refused"
    state = str(site.query(_STATE))
    assert POOL not in state
    assert ASSET not in state
    # Send the same request from the UI's own page, to show that the refused request was valid.
    browser.open(site.url, "Runs")
    sent = json.dumps({"query": f'mutation {{ setConcurrencyLimit(concurrencyKey: "{POOL}", limit: 3) }}'})
    options = f"{{method: 'POST', headers: {{'Content-Type': 'application/json'}}, body: {json.dumps(sent)}}}"
    browser.evaluate(f"fetch('/graphql', {options}).then(() => document.title = 'sent')")
    wait_until(lambda: POOL in str(site.query(_STATE)), 60)
