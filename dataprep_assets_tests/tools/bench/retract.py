"""What retracting costs: `python -m dataprep_assets_tests.tools.bench.retract`.

In a project that `dataprep init` made, a corpus of a million documents in 64 shards is built with all checks; a
thousand of them, in eight shards, are retracted. Timed, each command in a process of its own, as a person types it:
`dataprep retract`, until it has named the documents and until it has said what will be rebuilt, and the `dataprep run`
after it. Then every token file is scanned for the retracted documents' ids as the reference engine gives them (before
the retraction, the same scan finds them all), and all bytes are compared with a build from scratch.
"""

import argparse
import itertools
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

from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.engines import ReferenceEngine
from dataprep_assets_tests.pipelines.corpus.pipeline import products
from dataprep_assets_tests.tools.bench.invented_text import SEPARATORS, sentence, train_tokenizer, vocabulary
from dataprep_assets_tests.tools.bench.runner import measure

DATASET, SHARDS, TOUCHED, TARGET_SECONDS = "retracted", 64, 8, 5.0
_COMMAND = (sys.executable, "-m", "dataprep_assets.cli")


def text(number: int, words: list[str], length: int) -> str:
    """Return a unique document of this many words."""
    return f"{number} {sentence(random.Random(number), words, length)}"


def write_project(folder: Path, documents: int, length: int) -> int:
    """Create a project with a corpus of one file per shard with equal numbers of documents; return the number of
    documents.
    """
    subprocess.run([*_COMMAND, "init", str(folder)], check=True, capture_output=True)
    words, each = vocabulary(), documents // SHARDS
    defs = folder / folder.name.replace("-", "_") / "defs" / DATASET
    (defs / "data" / "train").mkdir(parents=True)
    for shard in range(SHARDS):
        numbers = range(shard * each, (shard + 1) * each)
        lines = (f'{{"id":"doc-{n}","text":"{text(n, words, length)}"}}\n' for n in numbers)
        (defs / "data" / "train" / f"{shard:03d}.jsonl").write_text("".join(lines))
    rng = random.Random(0)
    train_tokenizer(defs / "tokenizer", [sentence(rng, words, 200) for _ in range(500)], size=2_000)
    attributes = {
        "dataset": DATASET,
        "source": {"kind": "local", "path": "./data"},
        "include": ["**/*.jsonl"],
        "splits": {"train": ["train/**"]},
        "tokenizer": {"path": "./tokenizer"},
        "document": {"separator": SEPARATORS[0], "id_field": "id"},
        "shards": {"count": SHARDS},
        "views": ["nanogpt", "megatron"],
    }
    value = {"type": "dataprep_assets.components.TokenizedCorpus", "attributes": attributes}
    (defs / "defs.yaml").write_text(yaml.safe_dump(value))
    return each * SHARDS


def environment(folder: Path, place: str) -> dict[str, str]:
    """Return the environment of a command whose artifacts and instance are in their own folder."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    here = {"DATAPREP_ROOT": str(folder / place / "artifacts"), "DAGSTER_HOME": str(folder / place / "home")}
    return kept | here | {"PYTHONUNBUFFERED": "1"}


def receipts(root: Path) -> dict[str, bytes]:
    """Return artifact → its receipt, which changes with each build."""
    found = sorted((root / DATASET).rglob("receipt.json"))
    return {path.parent.relative_to(root / DATASET).as_posix(): path.read_bytes() for path in found}


def found_by_scan(root: Path, tokenizer: Path, numbers: Sequence[int], length: int) -> dict[str, int]:
    """Return token file → the number of these documents in it, found by separators only, without index or document
    ends.
    """
    words, bundle = vocabulary(), TokenizerBundle.load(tokenizer)
    separator = bundle.find_token(SEPARATORS[0], key="separator").id
    ids, ends = ReferenceEngine(bundle, "text").encode([text(n, words, length) for n in numbers])
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


def retract(project: Path, ids: Path, variables: dict[str, str]) -> tuple[dict[str, float], str]:
    """Run `dataprep retract`; return its CPU seconds (`cpu`), the seconds until the documents and shards are named
    (`named`) and until it ends (`all`), and its output.
    """
    line = [*_COMMAND, "--project", str(project), "retract", DATASET, "--ids", str(ids)]
    # First run the command twice for a document that does not exist, because the first runs in a new project compile
    # byte code.
    nobody = ids.with_name("nobody")
    nobody.write_text("nobody\n")
    for _ in range(2):
        subprocess.run([*line[:-1], str(nobody)], env=variables, check=True, capture_output=True)
    used, started, seconds, printed = _children_cpu(), time.perf_counter(), {}, ""
    with subprocess.Popen(line, env=variables, stdout=subprocess.PIPE, text=True) as process:
        for told in process.stdout or ():
            printed += told
            if told.startswith("Added "):
                seconds["named"] = time.perf_counter() - started
    assert process.returncode == 0, printed
    return seconds | {"all": time.perf_counter() - started, "cpu": _children_cpu() - used}, printed


def _children_cpu() -> float:
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a target is missed or a trace is found."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.bench.retract", description=__doc__)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--retracted", type=int, default=1_000)
    parser.add_argument("--words", type=int, default=60, help="of a document")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="dataprep-bench-") as name:
        return _bench(Path(name), arguments.documents, arguments.retracted, arguments.words)


def _bench(folder: Path, documents: int, count: int, length: int) -> int:
    project, root = folder / "their-data", folder / "first" / "artifacts"
    documents = write_project(project, documents, length)
    tokenizer = project / "their_data" / "defs" / DATASET / "tokenizer"
    line, here = [*_COMMAND, "--project", str(project), "run", DATASET], environment(folder, "first")
    first = measure(line, here)
    print(f"{documents:,} documents in {SHARDS} shards, built in {first.cpu:.1f} CPU s, {first.wall:.1f} s", flush=True)
    each, rng = documents // SHARDS, random.Random(1)
    shards = sorted(rng.sample(range(SHARDS), TOUCHED))
    numbers = rng.sample([n for shard in shards for n in range(shard * each, (shard + 1) * each)], count)
    ids = folder / "ids"
    ids.write_text("".join(f"doc-{n}\n" for n in numbers))
    before, made = found_by_scan(root, tokenizer, numbers, length), receipts(root)
    streams = [name for name in before if "/token_bins/" not in name]
    assert all(before[name] == count for name in streams), before
    load = os.getloadavg()[0]
    seconds, printed = retract(project, ids, here)
    print(printed, end="")
    run = measure(line, here)
    built = [name for name, receipt in receipts(root).items() if made.get(name) != receipt]
    wanted = [f"token_bins/train-{shard:05d}" for shard in shards]
    traces = found_by_scan(root, tokenizer, numbers, length)
    scratch = measure(line, environment(folder, "scratch"))
    same = products(root) == products(folder / "scratch" / "artifacts")
    only = [name for name in built if name.startswith("token_bins/")] == wanted
    print(
        f"`dataprep retract` named them after {seconds['named']:.2f} s and what will be rebuilt after "
        f"{seconds['all']:.2f} s (target: under {TARGET_SECONDS:.0f} s); {seconds['cpu']:.2f} CPU s, at a load of "
        f"{load:.1f}"
    )
    print(f"the run after it: {run.cpu:.1f} CPU s, {run.wall:.1f} s; built {', '.join(built)}")
    print(f"only the {TOUCHED} shards that held them rebuilt: {only}")
    print(f"traces: {sum(traces.values())} in {len(traces)} token files (before: {count} in each stream)")
    print(f"bytes equal to a build from scratch ({scratch.cpu:.1f} CPU s): {same}")
    return int(not (only and same and not any(traces.values()) and seconds["all"] < TARGET_SECONDS))


if __name__ == "__main__":
    sys.exit(main())
