"""Measure the load of a hundred datasets that poll for new files on one daemon, and the delay of their ticks.

`python -m dataprep_assets_tests.tools.bench.automation --datasets 100 --files 200` prints the CPU-seconds of the daemon
and its code server per round of polls, and the delay of the ticks. Every dataset has its own folder, and a plan.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from unittest import mock

import dagster as dg
from dagster._core.scheduler.instigation import InstigatorType

from dataprep_assets.engine.artifact.dataset import validate_declaration
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.manifest import build_manifest_artifact
from dataprep_assets_tests.deploy.daemon import run_daemon
from dataprep_assets_tests.deploy.tiny_corpus import make_attributes, write_corpus

_TICK_SECONDS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Return the CPU-seconds of a process and all its current children."""
    own = sum(int(field) for field in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    threads = [task for task in Path(f"/proc/{pid}/task").iterdir() if task.name != str(pid)]
    for task in threads:
        children += (task / "children").read_text().split()
    return own / _TICK_SECONDS + sum(cpu_seconds(int(child)) for child in children)


def prepared(folder: Path, datasets: int, files: int, interval: int) -> Path:
    """Write the declarations of this many planned corpora, and return their file."""
    source = write_corpus(folder / "source", files, documents=1)
    found = []
    for number in range(datasets):
        own = folder / "sources" / f"{number}"
        for path in source.rglob("*.zst"):
            target = own / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, target)
        automation = {"on_new_files": f"{interval}s"}
        found.append(make_attributes(own, shards=4, dataset=f"corpus{number}", automation=automation))
        corpus = validate_declaration(CorpusDeclaration, found[-1], folder / "corpora.json")
        build_manifest_artifact(corpus, LocalArtifacts(folder / "artifacts"))
    (folder / "corpora.json").write_text(json.dumps(found))
    return folder / "corpora.json"


def looks(home: Path) -> dict[str, list[tuple[float, float]]]:
    """Return start and end of each tick of each sensor, in seconds since 1970."""
    with mock.patch.dict(os.environ, {"DAGSTER_HOME": str(home)}), dg.DagsterInstance.from_config(str(home)) as found:
        states = found.all_instigator_state(instigator_type=InstigatorType.SENSOR)
        return {
            state.name: sorted(
                (tick.timestamp, tick.end_timestamp)
                for tick in found.get_ticks(state.instigator_origin_id, state.selector_id)
                if tick.end_timestamp is not None
            )
            for state in states
        }


def main() -> None:
    """Run the benchmark; see the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", type=int, default=100)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--interval", type=int, default=60, help="seconds between two looks")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dataprep-bench-") as temporary:
        folder = Path(temporary)
        declarations = prepared(folder, chosen.datasets, chosen.files, chosen.interval)
        with run_daemon(folder, declarations, folder / "artifacts") as log:
            while log.read_text().count("skipped: the source matches the plan") < chosen.datasets:
                time.sleep(1)
            pid = int((folder / "daemon.pid").read_text())
            before, began = cpu_seconds(pid), time.monotonic()
            time.sleep(chosen.interval * chosen.rounds)
            spent, passed = cpu_seconds(pid) - before, time.monotonic() - began
            ticks = looks(folder / "home")
    late = [b[0] - a[0] - chosen.interval for every in ticks.values() for a, b in pairwise(every)]
    took = [end - start for every in ticks.values() for start, end in every[1:]]
    print(
        f"{chosen.datasets} datasets of {chosen.files} files, a look every {chosen.interval} s, {passed:.0f} s watched"
    )
    print(f"CPU of daemon and code server: {spent / passed * chosen.interval:.1f} s a round")
    print(f"looks: {len(took)}, median {statistics.median(took):.2f} s, longest {max(took):.2f} s")
    print(f"late by: median {statistics.median(late):.1f} s, most {max(late):.1f} s")


if __name__ == "__main__":
    main()
