"""What a person sees: Dagster's own UI over the materialized sample corpus, in a real browser.

`DATAPREP_PICTURES=folder` keeps the screenshots; the README's pictures are made that way.
"""

import json
from collections.abc import Iterator

import pytest

from dataprep_assets_tests.ui.browser import Browser, Site, wait_until
from dataprep_assets_tests.ui.hostile_page import ASSET, POOL, hostile_page
from dataprep_assets_tests.ui.site import site as served

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with served(tmp_path_factory.mktemp("site"), before=[["run", "sample_corpus"]]) as made:
        yield made


def test_the_graph_shows_every_artifact_materialized_and_checked(site: Site, browser: Browser) -> None:
    names = ("manifest", "engine_certificate", "snapshot", "token_bins", "combined_bins", "nanogpt_bins")
    url = f"{site.url}/locations/dataprep_assets/asset-groups/sample_corpus/lineage"
    browser.open(url, *names, "9 / 9 Passed", "11 / 11 Passed", "100% filled")
    browser.picture(site.pictures / "graph.png")


def test_a_partition_shows_its_numbers(site: Site, browser: Browser) -> None:
    url = f"{site.url}/assets/sample_corpus/token_bins_train?partition=train-00001&view=partitions"
    browser.open(url, "train-00002", "tokens", "documents", "tokens_per_cpu_second", "dropped", "source_bytes")
    browser.picture(site.pictures / "partitions.png")


def test_the_numbers_of_an_asset_plot(site: Site, browser: Browser) -> None:
    browser.open(f"{site.url}/assets/sample_corpus/token_bins_train?view=overview", "Plots", "tokens_per_cpu_second")

    def plotted() -> bool:
        canvases = int(browser.evaluate("document.querySelectorAll('canvas').length"))
        if not canvases:
            browser.click("Plots")  # once more where the page came anew meanwhile
        return canvases >= 4

    wait_until(plotted, 180)
    browser.picture(site.pictures / "plots.png")


def test_a_check_shows_its_table(site: Site, browser: Browser) -> None:
    url = f"{site.url}/assets/sample_corpus/combined_bins_train?view=checks&checkDetail=eye_test"
    browser.open(url, "eye_test", "bits_per_token", "Passed", "decode to plausible text")
    browser.picture(site.pictures / "eye_test.png")


TIMELINE = """query CompletedRunTimelineQuery($completedFilter: RunsFilter!, $limit: Int!) {
  completed: runsOrError(filter: $completedFilter, limit: $limit) {
    ... on Runs { results { id pipelineName startTime endTime tags { key value }
      repositoryOrigin { repositoryName repositoryLocationName } } } } }"""
"""As useRunsForTimeline.tsx of the webserver asks; it drops runs without an origin, and rows of no job it knows."""


def test_the_runs_of_the_command_are_on_the_timeline_with_what_they_make(site: Site, browser: Browser) -> None:
    asked = {"statuses": ["SUCCESS"], "tags": [{"key": "dataprep/dataset", "value": "sample_corpus"}]}
    runs = site.query(TIMELINE, completedFilter=asked, limit=500)["completed"]["results"]
    origin = {"repositoryName": "__repository__", "repositoryLocationName": "dataprep_assets"}
    assert all(run["repositoryOrigin"] == origin and run["startTime"] for run in runs)
    steps = [tag["value"] for run in runs for tag in run["tags"] if tag["key"] == "dataprep/step"]
    assert {"manifest, engine_certificate", "snapshot_train, token_bins_train"} <= set(steps)
    jobs = "{ repositoriesOrError { ... on RepositoryConnection { nodes { pipelines { name } } } } }"
    (repository,) = site.query(jobs)["repositoriesOrError"]["nodes"]
    assert {run["pipelineName"] for run in runs} <= {job["name"] for job in repository["pipelines"]}
    browser.open(f"{site.url}/overview/activity/timeline?groupBy=job", "Jobless asset materializations")
    browser.picture(site.pictures / "timeline.png")


BACKFILL = """mutation($keys: [AssetKeyInput!]!, $shards: [String!]!) {
  launchPartitionBackfill(backfillParams: {assetSelection: $keys, partitionNames: $shards}) {
    __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""


def test_a_backfill_from_the_ui_rebuilds_the_deleted_shard_alone(site: Site) -> None:
    shards = [f"train-{i:05d}" for i in range(3)]
    files = {s: site.root / "sample_corpus" / "token_bins" / s / "tokens.bin" for s in shards}
    before = {s: path.stat().st_ino for s, path in files.items()}
    content = files[shards[1]].read_bytes()
    files[shards[1]].unlink()
    keys = [{"path": ["sample_corpus", f"{name}_train"]} for name in ("snapshot", "token_bins")]
    launched = site.query(BACKFILL, keys=keys, shards=shards)["launchPartitionBackfill"]
    assert launched["__typename"] == "LaunchBackfillSuccess", launched
    status = """query($id: String!) { partitionBackfillOrError(backfillId: $id) {
      ... on PartitionBackfill { status numPartitions runs(limit: 50) { status } } } }"""

    def finished() -> bool:
        found = site.query(status, id=launched["backfillId"])["partitionBackfillOrError"]
        assert "FAIL" not in found["status"], found
        return bool(found["status"] == "COMPLETED_SUCCESS")

    wait_until(finished, 300)
    runs = site.query(status, id=launched["backfillId"])["partitionBackfillOrError"]["runs"]
    assert len(runs) == 1, "three shards fit one run"
    assert files[shards[1]].read_bytes() == content
    assert {s for s in shards if files[s].stat().st_ino != before[s]} <= {shards[1]}


def test_the_page_of_all_datasets_leads_to_a_failed_check(site: Site, browser: Browser) -> None:
    card = site.root / "sample_corpus" / "data_card" / "dataset_card.md"
    card.write_text(card.read_text() + "\nNobody's word.\n")
    browser.open(f"{site.url}/assets/sample_corpus/data_card?view=checks", "card_matches_receipts", "Execute all")
    browser.click("Execute all")
    browser.wait_for("dataset_card.md line")

    browser.open(f"{site.url}/assets", "datasets")
    browser.click("datasets")
    browser.wait_for("checks failed", "Materialize")
    browser.click("Materialize")
    browser.wait_for("data_card/card_matches_receipts", "dataset_card.md line", "all datasets", "86")
    browser.picture(site.pictures / "datasets.png")
    browser.click("data_card/card_matches_receipts")
    browser.wait_for("Evaluation result", "card_matches_receipts", "dataset_card.md line")
    place = browser.evaluate("location.pathname + location.search")
    assert place == "/assets/sample_corpus/data_card?view=checks&checkDetail=card_matches_receipts"


_STATE = """{ instance { concurrencyLimits { concurrencyKey } } runsOrError { ... on Runs { count } }
  assetsOrError { ... on AssetConnection { nodes { key { path } } } } }"""


def test_a_page_of_another_origin_launches_deletes_and_reports_nothing(site: Site, browser: Browser) -> None:
    before = site.query(_STATE)
    with hostile_page(site.url) as page:
        browser.open(page, "all was tried")
        tried = json.loads(browser.evaluate("document.title"))
    assert tried["json"] == tried["socket"] == "refused"
    assert site.query(_STATE) == before
    assert POOL not in str(before)
    assert ASSET not in str(before)
    # the same as the UI itself sends it, so that the page could have done something
    browser.open(site.url, "Runs")
    sent = json.dumps({"query": f'mutation {{ setConcurrencyLimit(concurrencyKey: "{POOL}", limit: 3) }}'})
    options = f"{{method: 'POST', headers: {{'Content-Type': 'application/json'}}, body: {json.dumps(sent)}}}"
    browser.evaluate(f"fetch('/graphql', {options}).then(() => document.title = 'sent')")
    wait_until(lambda: POOL in str(site.query(_STATE)), 60)
