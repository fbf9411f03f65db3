"""Measure the cost of a corpus's checks compared with its build: `python -m
dataprep_assets_tests.tools.bench.corpus_checks`.

Every artifact of a corpus of three splits, at most four shards per split and all views is built and checked like in a
run, but in this process: CPU-seconds of both, medians of runs with new folders, without the first run.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dataprep_assets.engine.artifact.build import iterate_builds
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest
from dataprep_assets.execution.processes import ONE_THREAD
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.corpus.dataset import corpus_specs
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.views import VIEWS
from dataprep_assets_tests.tools.bench.check_costs import judged
from dataprep_assets_tests.tools.bench.sft import SHARED_TOKENIZER

_SHARED = SHARED_TOKENIZER.parents[1] / "data" / "corpus"
_CERTIFICATE = "engine_certificate"
_SPLITS = {"train": ["train/**"], "val": ["validation/**"], "test": ["test/**"]}


def declared(data: Path, tokenizer: Path) -> CorpusDeclaration:
    """Return the corpus of the three folders of some data."""
    return CorpusDeclaration.model_validate(
        {
            "dataset": "proven",
            "source": {"kind": "local", "path": data},
            "include": [f"{patterns[0]}/*.jsonl.zst" for patterns in _SPLITS.values()],
            "splits": _SPLITS,
            "tokenizer": {"path": tokenizer},
            "document": {"separator": "<|endoftext|>"},
            "shards": {"count": 4},
            "views": list(VIEWS),
        }
    )


def measured(work: Callable[[], None]) -> float:
    """Return the CPU-seconds of some work, including processes that it started and waited for."""

    def seconds() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + children.ru_utime + children.ru_stime

    started = seconds()
    work()
    return seconds() - started


def made_and_proven(corpus: CorpusDeclaration, root: Path) -> dict[str, tuple[float, float]]:
    """Return the CPU-seconds of building and of checking each artifact, by name without its split."""
    store = LocalArtifacts(root)
    found: dict[str, tuple[float, float]] = {}
    for spec, partitions in iterate_builds(corpus_specs(corpus), store):
        costs = (measured(lambda s=spec, p=partitions: _make(s, store, p)),)
        costs = (*costs, measured(lambda s=spec, p=partitions: _prove(s, store, p)))
        before = found.get(spec.name, (0.0, 0.0))
        found[spec.name] = before[0] + costs[0], before[1] + costs[1]
    return found


def _make(spec: ArtifactSpec, store: LocalArtifacts, partitions: Sequence[str]) -> None:
    for outcome in spec.build(BuildRequest(store=store, partitions=partitions, workers=1)):
        if outcome.error is not None:
            raise outcome.error


def _prove(spec: ArtifactSpec, store: LocalArtifacts, partitions: Sequence[str]) -> None:
    if not spec.checks:
        return
    for name, finding in spec.examine(store, partitions):
        if not finding.passed and not finding.warning:
            raise SystemExit(f"{spec.name}: {name}: {finding.summary}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its figures; return 1 if the target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m dataprep_assets_tests.tools.bench.corpus_checks", description=__doc__
    )
    parser.add_argument("--data", type=Path, default=_SHARED, help="train, validation and test of *.jsonl.zst")
    parser.add_argument("--tokenizer", type=Path, default=SHARED_TOKENIZER)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write all measurements here")
    given = parser.parse_args(argv)
    os.environ.update(ONE_THREAD)
    runs = []
    for number in range(given.runs + 1):
        with tempfile.TemporaryDirectory(prefix="dataprep-bench-") as folder:
            costs = made_and_proven(declared(given.data, given.tokenizer), Path(folder))
            if number:
                runs.append(costs)
    print(f"{'CPU-seconds':24}{'made':>10}{'proven':>10}")
    rows = [(name, *(statistics.median(run[name][at] for run in runs) for at in (0, 1))) for name in runs[0]]
    # Exclude the certificate, because one certificate serves many shards, and most of its time is itself a comparison.
    total = "all but certificate", *(sum(row[at] for row in rows if row[0] != _CERTIFICATE) for at in (1, 2))
    for name, made, proven in (*rows, total):
        print(f"{name:24}{made:>10.3f}{proven:>10.3f}")
    met = judged("proofs", total[2], total[1])
    if given.json:
        given.json.write_text(json.dumps(runs, indent=1) + "\n")
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
