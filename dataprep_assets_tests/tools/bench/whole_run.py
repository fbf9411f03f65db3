"""`python -m dataprep_assets_tests.tools.bench.whole_run`: what all of `dataprep run` costs on a small corpus.

A project of `dataprep init`, a home of its own, a corpus of three splits with four shards a split at most, the views of
nanoGPT and Megatron, every check; then the same command again, with nothing to do; and the plain script (contender (a),
line by line) over the same files. They take turns, and medians are told. The ids of both are compared file by file, and
the time that `dataprep plan` expects with the time that the run took.

The corpora are the shared one, where it is, and one of forty languages that the bench builds itself.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dataprep_assets_tests.tools.bench.comparison import REPOSITORY, find_corpus
from dataprep_assets_tests.tools.bench.contenders import Spec
from dataprep_assets_tests.tools.bench.languages import write_languages
from dataprep_assets_tests.tools.bench.runner import Measurement, measure
from dataprep_assets_tests.tools.bench.verdict import Judge

_SHARED = REPOSITORY.parent / "shared"
_SAMPLE = REPOSITORY / "dataprep_assets" / "defs" / "samples" / "sample_corpus"
DATASET = "whole"
_SPLITS = {"train": "train/**", "val": "validation/**", "test": "test/**"}
CPU, WALL, OF_SCRIPT, AGAIN, OFF = 14.0, 15.0, 5.0, 4.0, 2.0
"""Targets: CPU-seconds and seconds of the first run, ratio of the script's CPU-seconds to ours, seconds of the second
run, and the maximum error factor of the expected time."""
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}


@dataclass
class Whole:
    """All measurements on one corpus."""

    name: str
    tokens: int = 0
    run: list[Measurement] = field(default_factory=list)
    again: list[Measurement] = field(default_factory=list)
    script: list[Measurement] = field(default_factory=list)
    expected: float | None = None
    faults: list[str] = field(default_factory=list)

    def median(self, what: str, kind: str) -> float | None:
        """Return the median `wall` or `cpu` seconds of `run`, `again` or `script`; None if not measured."""
        found = [getattr(one, kind) for one in getattr(self, what)]
        return statistics.median(found) if found else None

    def targets(self) -> Iterator[tuple[str, float | None, bool | None]]:
        """Return `(target, measured, met)`; None if not measured."""
        script, run = self.median("script", "cpu"), self.median("run", "cpu")
        ratio = script / run if script and run else None
        for text, value, limit in (
            (f"at most {CPU:.0f} CPU-s", run, CPU),
            (f"at most {WALL:.0f} s", self.median("run", "wall"), WALL),
            (f"with nothing to do at most {AGAIN:.0f} s", self.median("again", "wall"), AGAIN),
        ):
            yield text, value, None if value is None else value <= limit
        wall = self.median("run", "wall")
        off = max(self.expected / wall, wall / self.expected) if self.expected and wall else None
        yield f"`dataprep plan` is off by at most {OFF:.0f} times", off, None if off is None else off <= OFF
        yield (
            f"the script takes at least {OF_SCRIPT:.0f} times the CPU-s",
            ratio,
            None if ratio is None else ratio >= OF_SCRIPT,
        )


def build_command(home: Path, root: Path, *arguments: str) -> list[str]:
    """Return the command line of `dataprep` for a project, with its own home."""
    # Unset the variables of this shell that may belong to a different project.
    unset = [name for name in os.environ if name.startswith(("DATAPREP_", "DAGSTER_", "XDG_"))]
    variables = ["DAGSTER_DISABLE_TELEMETRY=yes", f"HOME={home}", f"PYTHONPATH={REPOSITORY}"]
    environment = ["env", *(word for name in unset for word in ("-u", name)), *variables]
    return [*environment, sys.executable, "-m", "dataprep_assets.cli", "--project", str(root), *arguments]


def declare_corpus(data: Path, tokenizer: Path, separator: str) -> dict[str, Any]:
    """Return the attributes of a corpus of three splits with at most four shards per split."""
    return {
        "dataset": DATASET,
        "source": {"kind": "local", "path": str(data)},
        "include": [f"{folder}/*.jsonl.zst" for folder in _SPLITS.values()],
        "splits": {split: [folder] for split, folder in _SPLITS.items()},
        "tokenizer": {"path": str(tokenizer)},
        "document": {"separator": separator},
        "shards": {"count": 4},
        "views": ["nanogpt", "megatron"],
    }


def make_project(home: Path, root: Path, attributes: Mapping[str, Any]) -> None:
    """Make a project with `dataprep init`, and declare a corpus in it."""
    measure([*build_command(home, root)[:-2], "init", str(root)])
    (defs,) = (path for path in root.rglob("defs") if path.is_dir() and ".dataprep" not in path.parts)
    (defs / DATASET).mkdir()
    declaration = {"type": "dataprep_assets.components.TokenizedCorpus", "attributes": dict(attributes)}
    (defs / DATASET / "defs.yaml").write_text(yaml.safe_dump(declaration))


class WholeRun:
    """The project and the script for one corpus."""

    def __init__(self, name: str, data: Path, tokenizer: Path, separator: str, scratch: Path) -> None:
        self.result = Whole(name)
        self._data, self._tokenizer, self._separator, self._scratch = data, tokenizer, separator, scratch
        self._scratch.mkdir()
        self._corpus = find_corpus(data, [folder.partition("/")[0] for folder in _SPLITS.values()])

    def turn(self, *, script: bool) -> None:
        """Measure each program once."""
        root = self._scratch / "project"
        shutil.rmtree(self._scratch)
        home = self._scratch / "home"
        home.mkdir(parents=True)
        make_project(home, root, declare_corpus(self._data, self._tokenizer, self._separator))
        self.result.expected = self._expected(home, root)
        self.result.run.append(measure(build_command(home, root, "run", DATASET)))
        self.result.again.append(measure(build_command(home, root, "run", DATASET)))
        spec, streams = self._made(root)
        judge = Judge(spec.tokens, spec.dtype)
        self.result.tokens = sum(spec.tokens)
        spec.report(streams)
        self.result.faults += judge.faults("d", Path(spec.out), ids=True)
        if script:
            spec.write(self._scratch / "spec.json")
            module = "dataprep_assets_tests.tools.bench.contenders"
            environment = {"TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(REPOSITORY)}
            command = [sys.executable, "-m", module, str(self._scratch / "spec.json")]
            self.result.script.append(measure(command, environment))
            self.result.faults += judge.faults("a", Path(spec.out), ids=True)

    def _expected(self, home: Path, root: Path) -> float:
        """Return the seconds that `dataprep plan` expects for the run, before a build."""
        command = build_command(home, root, "plan", DATASET)
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        (value, unit), *_ = re.findall(r"^expected +([0-9.,]+) (s|min|h)", out, re.MULTILINE)
        return float(value.replace(",", "")) * _UNITS[unit]

    def _made(self, root: Path) -> tuple[Spec, list[tuple[str, list[int]]]]:
        """Return the expected output of the script, and our streams with the files in each, both from the receipts."""
        labels = [str(Path(path).relative_to(self._data)) for path in self._corpus.paths]
        tokens: dict[str, int] = {}
        streams, facts = [], {}
        for path in sorted(root.glob(f".dataprep/artifacts/{DATASET}/token_bins*/*/receipt.json")):
            receipt = json.loads(path.read_bytes())
            facts = receipt["facts"]
            tokens |= {source["file"]: source["tokens"] for source in receipt["sources"]}
            files = [labels.index(source["file"]) for source in receipt["sources"]]
            streams.append((str(path.parent / "tokens.bin"), files))
        out = self._scratch / "out"
        out.mkdir()
        spec = Spec(
            contender="a",
            paths=self._corpus.paths,
            files=tuple(range(len(labels))),
            tokens=tuple(tokens[label] for label in labels),
            sha256=self._corpus.sha256,
            text_field="text",
            tokenizer=str(self._tokenizer),
            tokenizer_digest="",
            certificate={},
            separator=self._separator,
            separator_id=facts["separator_id"],
            dtype=facts["dtype"],
            sample_rate=0,
            workers=min(2, len(os.sched_getaffinity(0))),
            out=str(out),
        )
        return spec, streams


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m dataprep_assets_tests.tools.bench.whole_run", description=(__doc__ or "").splitlines()[0]
    )
    add_corpus_arguments(parser)
    parser.add_argument("--no-script", action="store_true", help="measure only `dataprep run`")
    parser.add_argument("--json", type=Path, help="also write all measurements here")
    return parser.parse_args(argv)


def add_corpus_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose the corpora, the tokenizer, and the number and the folder of the runs."""
    parser.add_argument(
        "--data", type=Path, help="a folder with train/, validation/ and test/, instead of both corpora"
    )
    parser.add_argument("--tokenizer", type=Path, help="folder with tokenizer.json and its configuration")
    parser.add_argument("--separator", default="<|endoftext|>")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scratch", type=Path, help="folder for the projects, which are removed again")


def list_corpora(data: Path | None, scratch: Path) -> Iterator[tuple[str, Path]]:
    """Yield name and folder of each corpus: `data`, otherwise the shared one if it exists, and a generated one."""
    if data is not None:
        yield data.name, data.resolve()
        return
    if (shared := _SHARED / "data" / "corpus").exists():
        yield "shared corpus", shared
    write_languages(scratch / "languages", files=6, documents_a_file=1_200)
    yield "forty languages", scratch / "languages"


def find_tokenizer(declared: Path | None) -> Path:
    """Return the folder of the tokenizer: `declared`, otherwise the shared one if it exists, or the sample's."""
    shared = _SHARED / "tokenizers" / "qwen3"
    return (declared or (shared if shared.exists() else _SAMPLE / "tokenizer")).resolve()


def render(whole: Whole) -> str:
    """Return the measurements on one corpus, and its targets, as text."""

    def told(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    names = {"run": "dataprep run", "again": "again, nothing to do", "script": "the plain script"}
    said = {True: "met", False: "NOT MET", None: "not measured"}
    lines = [f"{whole.name}: {whole.tokens / 1e6:.2f} M tokens, medians of {len(whole.run)} interleaved runs"]
    lines += [
        f"  {names[what]:<22}{told(whole.median(what, 'cpu')):>8} CPU-s {told(whole.median(what, 'wall')):>8} s"
        for what in names
    ]
    lines += [f"  {'`dataprep plan` expects':<22}{'':>14} {told(whole.expected):>8} s"]
    lines += [f"  {text}: {told(value)}: {said[met]}" for text, value, met in whole.targets()]
    lines += [f"  WRONG: {fault}" for fault in dict.fromkeys(whole.faults)]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if the ids of ours and of the script differ."""
    arguments = _arguments(argv)
    tokenizer = find_tokenizer(arguments.tokenizer)
    with tempfile.TemporaryDirectory(prefix="dataprep-bench-", dir=arguments.scratch) as folder:
        scratch = Path(folder)
        benches = [
            WholeRun(name, data, tokenizer, arguments.separator, scratch / f"work{at}")
            for at, (name, data) in enumerate(list_corpora(arguments.data, scratch))
        ]
        for turn in range(arguments.runs):
            for bench in benches:
                print(f"run {turn + 1} of {arguments.runs}: {bench.result.name}", file=sys.stderr, flush=True)
                bench.turn(script=not arguments.no_script)
    for bench in benches:
        print(render(bench.result), flush=True)
    if arguments.json is not None:
        found: list[dict[str, Any]] = [
            {"corpus": bench.result.name}
            | {what: [vars(one) for one in getattr(bench.result, what)] for what in ("run", "again", "script")}
            for bench in benches
        ]
        arguments.json.write_text(json.dumps(found, indent=1))
    return 1 if any(bench.result.faults for bench in benches) else 0


if __name__ == "__main__":
    sys.exit(main())
