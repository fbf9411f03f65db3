"""What a person waits for in the UI: `python -m dataprep_assets_tests.bench.waiting`.

`dagster dev` over a new project with the instance of `deploy/local`; then, of a corpus of tiny files, the job of the
dataset from its launch to its last check, and the pages of its group and of its shards in a real Chromium, from the
address to the first sight of what they show. Last the resident memory of all processes that `dagster dev` started.
Targets: ready in 15 s, 300 shards in 150 s, a page of 4,000 partitions in 2 s (`--shards 4000` takes a while).
"""

import argparse
import tempfile
import time
from pathlib import Path

from dataprep_assets_tests.deploy.tiny_corpus import attributes, write_corpus
from dataprep_assets_tests.servers import wait_until
from dataprep_assets_tests.ui.browser import Browser
from dataprep_assets_tests.ui.site import LOCATION, scratch_project, site

_DATASET = "tiny"


def resident_megabytes(home: Path) -> tuple[float, int]:
    """`(MB of all processes of an instance, how many they are)`, told by DAGSTER_HOME in their environment."""
    mark, kilobytes, count = f"DAGSTER_HOME={home}".encode(), 0, 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            # shared pages are divided among those that share them
            found = (folder / "smaps_rollup").read_text().partition("\nPss:")[2].split()[0]
        except OSError:
            continue
        kilobytes, count = kilobytes + int(found), count + 1
    return kilobytes / 1024, count


def seconds_to_see(browser: Browser, url: str, *texts: str) -> float:
    """Seconds until a page shows texts, looked at every 50 ms."""
    started = time.monotonic()
    browser.call("Page.navigate", url=url)
    while any(text not in (browser.evaluate("document.body.innerText") or "") for text in texts):
        if time.monotonic() - started > 180:
            raise RuntimeError(f"{url} does not show {texts}")
        time.sleep(0.05)
    return time.monotonic() - started


def main() -> None:
    """Print each figure as it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=300)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpus(folder / "source", files=given.shards)
        project = scratch_project(folder / "project")
        started = time.monotonic()
        with site(folder / "site", project, loaded=False) as made:
            print(f"ready                   {time.monotonic() - started:8.1f} s", flush=True)
            made.declare(_DATASET, "TokenizedCorpus", attributes(folder / "source", given.shards))
            made.reload()
            started = time.monotonic()
            run = made.launch_job(f"build_{_DATASET}")
            limit = 30 + 3.0 * given.shards
            status = made.wait_for_run(run, limit)
            print(f"{given.shards} shards by the job {time.monotonic() - started:9.1f} s  {status}", flush=True)
            megabytes, processes = resident_megabytes(folder / "site" / "home")
            print(f"memory                  {megabytes:8.0f} MB in {processes} processes", flush=True)
            browser = Browser(folder / "browser")
            try:
                group = f"{made.url}/locations/{LOCATION}/asset-groups/{_DATASET}/lineage"
                shards = f"{made.url}/assets/{_DATASET}/token_bins_train?view=partitions"
                wait_until(lambda: bool(browser.evaluate("1")), 30)
                seconds_to_see(browser, group, "token_bins_train")  # the browser fetches the UI itself once
                for _ in range(3):
                    browser.call("Page.navigate", url="about:blank")
                    print(
                        f"group page              {seconds_to_see(browser, group, 'token_bins_train'):8.2f} s",
                        flush=True,
                    )
                    browser.call("Page.navigate", url="about:blank")
                    print(
                        f"page of partitions      {seconds_to_see(browser, shards, 'train-00000'):8.2f} s", flush=True
                    )
            finally:
                browser.close()


if __name__ == "__main__":
    main()
