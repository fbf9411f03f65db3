"""Measure waiting times in the UI: `python -m dataprep_assets_tests.tools.bench.waiting`.

It runs `dagster dev` for a new project with the instance of `deploy/local`. For corpora of tiny files it measures the
job of a dataset from its launch to its last check, and the resident memory of all processes that `dagster dev` started;
a backfill of all by clicks, canceled half-way and resumed; and the pages of a group and of its shards when all are
built, in a real Chromium, from the address to the first display of their contents. Targets: ready in 15 s, 300 shards
in 150 s, a page of 4,000 partitions in 2 s (`--shards 0 --partitions 4000`).
"""

import argparse
import tempfile
import time
from pathlib import Path

from dataprep_assets_tests.deploy.tiny_corpus import make_attributes, write_corpus
from dataprep_assets_tests.servers import wait_until
from dataprep_assets_tests.ui.browser import Browser
from dataprep_assets_tests.ui.clicks import cancel_backfill, materialize_all, resume_backfill
from dataprep_assets_tests.ui.site import LOCATION, ServedProject, scratch_project, site


def resident_megabytes(home: Path) -> tuple[float, int]:
    """Return `(MB of all processes of an instance, number of processes)`, identified by DAGSTER_HOME in their
    environment.
    """
    mark, kilobytes, count = f"DAGSTER_HOME={home}".encode(), 0, 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            # Read the proportional set size, which divides shared pages among the processes that share them.
            found = (folder / "smaps_rollup").read_text().partition("\nPss:")[2].split()[0]
        except OSError:
            continue
        kilobytes, count = kilobytes + int(found), count + 1
    return kilobytes / 1024, count


def seconds_to_see(browser: Browser, url: str, *texts: str) -> float:
    """Return the seconds until a page shows texts, checked every 50 ms."""
    started = time.monotonic()
    browser.call("Page.navigate", url=url)
    while any(text not in (browser.evaluate("document.body.innerText") or "") for text in texts):
        if time.monotonic() - started > 180:
            raise RuntimeError(f"{url} does not show {texts}")
        time.sleep(0.05)
    return time.monotonic() - started


def declared(made: ServedProject, folder: Path, dataset: str, shards: int) -> Path:
    """Declare a corpus of tiny files with one file per shard, reload, and return the folder of its future token
    bins.
    """
    source = write_corpus(folder / dataset, files=shards)
    made.declare(dataset, "TokenizedCorpus", make_attributes(source, shards, dataset=dataset))
    made.reload()
    return made.root / dataset / "token_bins"


def print_figure(what: str, figure: float, unit: str = "s") -> None:
    """Print a figure."""
    print(f"{what:<44}{figure:8.1f} {unit}", flush=True)


def backfill(made: ServedProject, browser: Browser, folder: Path, shards: int) -> None:
    """Run a backfill by clicks, cancel it when a third of the shards is built, and resume it to its end."""
    bins = declared(made, folder, "filled", shards)
    with made.instance() as instance:
        wait_until(lambda: len(instance.get_dynamic_partitions("filled_train_shards")) == shards, 300)
    started = time.monotonic()
    first = materialize_all(made, browser, "filled", shards)
    wait_until(lambda: len(list(bins.glob("*/receipt.json"))) >= shards // 3, 1_800, every=0.2)
    pressed = time.monotonic()
    cancel_backfill(made, browser, first)
    print_figure(f"backfill of {shards}, canceled after", pressed - started)
    print_figure("  until it was", time.monotonic() - pressed)
    kept = {path: path.stat().st_ino for path in bins.glob("*/receipt.json")}
    print_figure("  shards kept", len(kept), "")
    started = time.monotonic()
    second = resume_backfill(made, browser, first)
    wait_until(lambda: made.backfills()[second].startswith("COMPLETED"), 3_600)
    print_figure("  resumed, to all green", time.monotonic() - started)
    bad = [name for name, status in made.checks("filled").items() if status != "SUCCEEDED"]
    again = [path for path, number in kept.items() if path.stat().st_ino != number]
    if bad or again or not made.all_materialized("filled"):
        raise RuntimeError(f"{made.backfills()[second]}: {len(again)} shards were made again, not green: {bad[:5]}")


def pages(made: ServedProject, browser: Browser, dataset: str) -> None:
    """Open the page of a group and the partitions of an asset three times, after a first time that loads the UI
    itself.
    """
    group = f"{made.url}/locations/{LOCATION}/asset-groups/{dataset}/lineage"
    shards = f"{made.url}/assets/{dataset}/token_bins_train?view=partitions"
    seconds_to_see(browser, group, "token_bins_train", "100% filled")
    for what, url, texts in [
        ("group page", group, ("token_bins_train", "100% filled")),
        ("page of partitions", shards, ("train-00000",)),
    ] * 3:
        browser.rest()
        print_figure(f"  {what}", seconds_to_see(browser, url, *texts))


def main() -> None:
    """Print each figure once it is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=300, help="of the job and of the backfill; 0: neither")
    parser.add_argument("--partitions", type=int, default=300, help="made before the pages are opened")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = time.monotonic()
        with site(folder / "site", scratch_project(folder)) as made:
            print_figure("ready", time.monotonic() - started)
            browser = Browser(folder / "browser")
            try:
                if given.shards:
                    declared(made, folder, "tiny", given.shards)
                    started = time.monotonic()
                    status = made.wait_for_run(made.launch_job("build_tiny"), 30 + 3.0 * given.shards)
                    print_figure(f"{given.shards} shards by the job ({status})", time.monotonic() - started)
                    megabytes, processes = resident_megabytes(folder / "site" / "home")
                    print_figure(f"memory of {processes} processes", megabytes, "MB")
                    backfill(made, browser, folder, given.shards)
                declared(made, folder, "many", given.partitions)
                made.command("run", "many", seconds=3600)
                print(f"{given.partitions} partitions, all made", flush=True)
                pages(made, browser, "many")
            finally:
                browser.close()


if __name__ == "__main__":
    main()
