"""How long the first action takes: a corpus of tiny shards, declared in an empty project, from one launch to all green.

`python -m dataprep_assets_tests.ui.first_action --shards 300` prints seconds, on SQLite and with `dagster dev`, as on
a laptop; `--backfill` has the daemon make the shards, as a dataset too large for the job's own run.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from dataprep_assets_tests.deploy.tiny_corpus import attributes, write_corpus
from dataprep_assets_tests.servers import wait_until
from dataprep_assets_tests.ui.site import ServedProject, scratch_project, site

__all__ = ["all_materialized", "checks", "measured"]

_ASSETS = "{ assetNodes { assetKey { path } groupName isPartitioned partitionStats { numPartitions numMaterialized } "
_ASSETS += "assetMaterializations(limit: 1) { runId } } }"
_CHECKS = """{ assetNodes { groupName assetKey { path } assetChecksOrError { ... on AssetChecks { checks { name blocking
  executionForLatestMaterialization { status evaluation { description severity } } } } } } }"""


def all_materialized(made: ServedProject, dataset: str) -> bool:
    """Whether every asset of a dataset is materialized, each in all its partitions."""
    nodes = [node for node in made.query(_ASSETS)["assetNodes"] if node["groupName"] == dataset]
    for node in nodes:
        stats = node["partitionStats"]
        if node["isPartitioned"] and (not stats["numPartitions"] or stats["numPartitions"] > stats["numMaterialized"]):
            return False
        if not node["assetMaterializations"]:
            return False
    return bool(nodes)


def checks(made: ServedProject, dataset: str) -> dict[str, str]:
    """`asset: check` of a dataset → its latest status as the UI has it; "" where there is none for what is there."""
    found = {}
    for node in made.query(_CHECKS)["assetNodes"]:
        if node["groupName"] == dataset:
            for check in node["assetChecksOrError"].get("checks", ()):
                latest = check["executionForLatestMaterialization"]
                found[f"{'/'.join(node['assetKey']['path'])}: {check['name']}"] = latest["status"] if latest else ""
    return found


def measured(folder: Path, shards: int, *, backfill: bool) -> dict[str, float | int]:
    """Seconds from the launch to the job's end, and to all green."""
    corpus = write_corpus(folder / "corpus", shards)
    project = scratch_project(folder / "project")
    if backfill:
        module = project / "dataprep_assets" / "orchestration" / "dataset_job.py"
        module.write_text(module.read_text().replace("MOST_IN_A_RUN = 500", "MOST_IN_A_RUN = 0"))
    with site(folder / "site", project, loaded=False) as made:
        made.declare("tiny", "TokenizedCorpus", attributes(corpus, shards))
        made.reload()
        started = time.monotonic()
        assert made.wait_for_run(made.launch_job("build_tiny"), 1_800) == "SUCCESS"
        job = time.monotonic() - started
        wait_until(lambda: all_materialized(made, "tiny") and not _running(made), 1_800)
        seconds = time.monotonic() - started
        bad = {name: status for name, status in checks(made, "tiny").items() if status != "SUCCEEDED"}
        assert not bad, bad
        return {"shards": shards, "job": round(job, 1), "all_green": round(seconds, 1), "runs": len(made.runs())}


def _running(made: ServedProject) -> bool:
    return any(run["status"] not in ("SUCCESS", "FAILURE", "CANCELED") for run in made.runs())


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure in a temporary folder."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.ui.first_action", description=__doc__)
    parser.add_argument("--shards", type=int, default=300)
    parser.add_argument("--backfill", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="dataprep-first-action-") as folder:
        print(json.dumps(measured(Path(folder), options.shards, backfill=options.backfill)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
