"""What retracting costs: `python -m dataprep_assets_tests.bench.retract`.

A corpus of a million short documents in 64 shards is built; a thousand of them, in eight shards, are retracted. Timed,
each in a process of its own: naming where they are (`locate`), the whole command `dataprep retract` in a project that
declares the corpus, and the run after it. Then every token file is scanned for the retracted documents' ids as the
reference engine gives them (before the retraction, the same scan finds them all), and all bytes are compared with a
build from scratch.
"""

import argparse
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.engines import ReferenceEngine
from dataprep_assets_tests.bench.invented_text import SEPARATORS, sentence, train_tokenizer, vocabulary
from dataprep_assets_tests.bench.runner import measure
from dataprep_assets_tests.pipelines.corpus.pipeline import products, run_pipeline
from dataprep_assets_tests.project import cloned_project

DATASET, SHARDS, TOUCHED, TARGET_SECONDS = "retracted", 64, 8, 5.0


def text(number: int, words: list[str]) -> str:
    """A short document that no other equals."""
    return f"{number} {sentence(random.Random(number), words, 6)}"


def attributes(folder: Path) -> dict[str, Any]:
    """The corpus in a folder, as its YAML declares it."""
    return {
        "dataset": DATASET,
        "source": {"kind": "local", "path": str(folder / "data")},
        "include": ["**/*.jsonl"],
        "splits": {"train": ["train/**"]},
        "tokenizer": {"path": str(folder / "tokenizer")},
        "document": {"separator": SEPARATORS[0], "id_field": "id"},
        "shards": {"count": SHARDS},
        "views": ["nanogpt", "megatron"],
        "retractions": str(folder / "retracted.jsonl"),
    }


def declared(folder: Path) -> CorpusDeclaration:
    """The same, ready for use."""
    return CorpusDeclaration.model_validate(attributes(folder))


def write_corpus(folder: Path, documents: int) -> int:
    """A file a shard, of equal numbers of documents; returns how many there are."""
    words, each = vocabulary(), documents // SHARDS
    (folder / "data" / "train").mkdir(parents=True)
    for shard in range(SHARDS):
        numbers = range(shard * each, (shard + 1) * each)
        lines = (f'{{"id":"doc-{n}","text":"{text(n, words)}"}}\n' for n in numbers)
        (folder / "data" / "train" / f"{shard:03d}.jsonl").write_text("".join(lines))
    rng = random.Random(0)
    train_tokenizer(folder / "tokenizer", [sentence(rng, words, 200) for _ in range(500)], size=2_000)
    return each * SHARDS


def found_by_scan(root: Path, folder: Path, numbers: Sequence[int]) -> dict[str, int]:
    """Token file → how many of these documents are in it; by separators alone, without index or document ends."""
    words, bundle = vocabulary(), TokenizerBundle.load(folder / "tokenizer")
    separator = bundle.token(SEPARATORS[0], key="separator").id
    ids, ends = ReferenceEngine(bundle, "text").encode([text(n, words) for n in numbers])
    wanted = {ids[a:b].astype("<u2").tobytes() for a, b in itertools.pairwise(ends.tolist())}
    assert len(wanted) == len(numbers)
    found = {}
    for path in sorted((root / DATASET).rglob("*.bin")):
        if path.name in ("document_ends.bin", "document_ids.bin", "document_rows.bin"):
            continue
        stream = np.fromfile(path, "<u2")
        found[path.relative_to(root).as_posix()] = sum(one in wanted for one in _documents(stream, separator))
    return found


def _documents(stream: Any, separator: int) -> Iterator[bytes]:
    data, start = stream.tobytes(), 0
    for end in np.flatnonzero(stream == separator).tolist():
        yield data[2 * start : 2 * end]
        start = end + 1


def once(folder: Path, root: Path) -> int:
    """One run, in this process."""
    outcome = run_pipeline(declared(folder), root, int(os.environ.get("DATAPREP_WORKERS", "1")))
    (folder / "built.json").write_text(json.dumps(sorted(outcome.built)))
    return int(bool(outcome.failed))


def locate_seconds(folder: Path, ids: Path) -> float:
    """Of naming the documents and shards of a list, in this process; what it imports first is not counted."""
    from dataprep_assets.pipelines.corpus.retract import locate, read_ids

    corpus, store = declared(folder), LocalArtifacts(folder / "root")
    started = time.perf_counter()
    located = locate(corpus, store, read_ids(ids))
    took = time.perf_counter() - started
    assert len(located.found) == len(ids.read_text().splitlines())
    return took


def command(folder: Path, ids: Path) -> tuple[dict[str, float], str]:
    """`dataprep retract` in a project that declares the corpus: its CPU seconds (`cpu`), the seconds until the
    documents and shards are named (`named`), until it ends (`all`), and what it printed."""
    project = cloned_project(folder / "project")
    defs = project / "dataprep_assets" / "defs" / DATASET
    defs.mkdir()
    value = {"type": "dataprep_assets.components.TokenizedCorpus", "attributes": attributes(folder)}
    (defs / "defs.yaml").write_text(yaml.safe_dump(value))
    environment = {**os.environ, "PYTHONPATH": str(project), "DATAPREP_ROOT": str(folder / "root")}
    environment |= {"DAGSTER_HOME": str(folder / "home"), "PYTHONUNBUFFERED": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    line = [sys.executable, "-m", "dataprep_assets.cli", "retract", DATASET, "--ids", str(ids)]
    # twice before, of a document that is not there: byte code is compiled for a new copy of the project
    (folder / "nobody").write_text("nobody\n")
    for _ in range(2):
        warm = [*line[:-1], str(folder / "nobody")]
        subprocess.run(warm, env=environment, cwd=project, check=True, capture_output=True)
    used, started, seconds, printed = _children_cpu(), time.perf_counter(), {}, ""
    with subprocess.Popen(line, env=environment, cwd=project, stdout=subprocess.PIPE, text=True) as process:
        for told in process.stdout or ():
            printed += told
            if "added to" in told:
                seconds["named"] = time.perf_counter() - started
    assert process.returncode == 0, printed
    return seconds | {"all": time.perf_counter() - started, "cpu": _children_cpu() - used}, printed


def _children_cpu() -> float:
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 1 when a target is missed or a trace is found."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.bench.retract", description=__doc__)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--retracted", type=int, default=1_000)
    parser.add_argument("--once", type=Path, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.once is not None:
        return once(*arguments.once)
    with tempfile.TemporaryDirectory(prefix="dataprep-bench-") as name:
        return _bench(Path(name), arguments.documents, arguments.retracted)


def _bench(folder: Path, documents: int, count: int) -> int:
    root, itself = folder / "root", [sys.executable, "-m", "dataprep_assets_tests.bench.retract", "--once", str(folder)]
    documents = write_corpus(folder, documents)
    first = measure([*itself, str(root)])
    print(f"{documents:,} documents in {SHARDS} shards, built in {first.cpu:.1f} CPU s, {first.wall:.1f} s", flush=True)
    each, rng = documents // SHARDS, random.Random(1)
    shards = sorted(rng.sample(range(SHARDS), TOUCHED))
    numbers = rng.sample([n for shard in shards for n in range(shard * each, (shard + 1) * each)], count)
    ids = folder / "ids"
    ids.write_text("".join(f"doc-{n}\n" for n in numbers))
    before = found_by_scan(root, folder, numbers)
    streams = [name for name in before if "/token_bins/" not in name]
    assert all(before[name] == count for name in streams), before
    located = locate_seconds(folder, ids)
    seconds, printed = command(folder, ids)
    print(printed, end="")
    run = measure([*itself, str(root)])
    built = json.loads((folder / "built.json").read_text())
    wanted = [f"token_bins/train-{shard:05d}" for shard in shards]
    traces = found_by_scan(root, folder, numbers)
    scratch = measure([*itself, str(folder / "scratch")])
    same = products(root) == products(folder / "scratch")
    only = [name for name in built if name.startswith("token_bins/")] == wanted
    print(
        f"located in {located:.2f} s; `dataprep retract` named them after {seconds['named']:.2f} s and took "
        f"{seconds['all']:.2f} s, {seconds['cpu']:.2f} CPU s (target: under {TARGET_SECONDS:.0f} s)"
    )
    print(f"the run after it: {run.cpu:.1f} CPU s, {run.wall:.1f} s; built {', '.join(built)}")
    print(f"only the {TOUCHED} shards that held them rebuilt: {only}")
    print(f"traces: {sum(traces.values())} in {len(traces)} token files (before: {count} in each stream)")
    print(f"bytes equal to a build from scratch ({scratch.cpu:.1f} CPU s): {same}")
    return int(not (only and same and not any(traces.values()) and seconds["named"] < TARGET_SECONDS))


if __name__ == "__main__":
    sys.exit(main())
