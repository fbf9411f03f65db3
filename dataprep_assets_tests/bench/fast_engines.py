"""`python -m dataprep_assets_tests.bench.fast_engines`: every engine alone, on every tokenizer that we ship or test.

For each tokenizer, engine and corpus a process of its own encodes texts that are in memory, in the batches of a build.
Printed are the CPU-seconds of loading, megabytes of text a CPU-second of the first pass and of later ones, the memory
that it takes beside the texts, how much sooner its own threads are done on two cores, and on which documents of the
adversarial set it disagrees with the installed reference. The newest `tokenizers` is an engine here, too, where
`make bench` has installed it; the installed one sees the first megabytes alone, because it takes minutes for all.
"""

import argparse
import gc
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dataprep_assets_tests.bench import newest_tokenizers
from dataprep_assets_tests.bench.__main__ import CORPUS, TOKENIZER
from dataprep_assets_tests.bench.comparison import REPOSITORY
from dataprep_assets_tests.bench.languages import write_languages

REFERENCE, NEWEST = "tokenizers", "newest"
_BATCH_CHARACTERS = 4_000_000
_REFERENCE_CHARACTERS = 4_000_000
_THREADS = 2


@dataclass(kw_only=True)
class Found:
    """What was measured of an engine: a list has a value a run."""

    version: str = ""
    load: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    later: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    threads: list[float] = field(default_factory=list)

    def add(self, told: dict[str, Any]) -> None:
        """Add what a process printed; see `main`."""
        self.version = told["version"]
        for name in ("load", "first", "later", "memory", "threads"):
            if name in told:
                getattr(self, name).append(told[name])

    def cells(self) -> list[str]:
        """Its columns of the table."""

        def shown(values: list[float], digits: int) -> str:
            return f"{statistics.median(values):,.{digits}f}" if values else "-"

        wanted = ((self.load, 2), (self.first, 1), (self.later, 1), (self.memory, 0), (self.threads, 1))
        return [shown(values, digits) for values, digits in wanted]


def tokenizers() -> list[Path]:
    """Folders of the tokenizers of the samples, and of those that lie beside the repository."""
    samples = REPOSITORY / "dataprep_assets" / "defs" / "samples"
    found = [*samples.glob("*/tokenizer/tokenizer.json"), *TOKENIZER.parent.glob("*/tokenizer.json")]
    return list(dict.fromkeys(path.parent for path in sorted(found)))


def _called(folder: Path) -> str:
    return folder.parent.name if folder.name == "tokenizer" else folder.name


def _texts(data: Path) -> list[str]:
    from dataprep_assets.sources.records import read_records

    texts: list[str] = []
    for path in sorted(data.rglob("*.jsonl.zst")):
        for block in read_records(path, format="jsonl", compression="zstd", text_field="text", label=path.name):
            texts += block.texts
    return texts


def _memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def measure_here(engine: str, tokenizer: Path, data: Path) -> dict[str, Any]:
    """Load an engine and encode the texts three times, in this process, which must not have done so before."""
    from dataprep_assets.tokenization.bundle import TokenizerBundle
    from dataprep_assets.tokenization.certificate import batches
    from dataprep_assets.tokenization.engines import GigatokenEngine, ReferenceEngine, fast_engine

    texts = _texts(data)
    bundle = TokenizerBundle.load(tokenizer)
    assert bundle.tokenizer_json  # its parsing is nobody's
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before, started = _memory("VmRSS"), time.process_time()
    loaded = ReferenceEngine(bundle, "text") if engine in (REFERENCE, NEWEST) else fast_engine(engine, bundle, "text")
    told: dict[str, Any] = {"version": loaded.version, "load": time.process_time() - started}
    encode: Callable[[list[str]], Any] = loaded.encode
    if isinstance(loaded, GigatokenEngine) and int(os.environ["RAYON_NUM_THREADS"]) > 1:
        encode = partial(loaded._kept[loaded._key][0].encode_batch, parallel=True)  # a build asks for one thread
    if engine == REFERENCE:
        texts = next(iter(batches(texts, _BATCH_CHARACTERS)))
        ends = [sum(map(len, texts[: at + 1])) for at in range(len(texts))]
        texts = texts[: 1 + next((at for at, end in enumerate(ends) if end >= _REFERENCE_CHARACTERS), len(texts))]
    whole = list(batches(texts, _BATCH_CHARACTERS))
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    seconds, walls = [], []
    for _ in range(1 if engine == REFERENCE else 3):
        cpu, wall = time.process_time(), time.perf_counter()
        for batch in whole:
            encode(batch)
        seconds.append(time.process_time() - cpu)
        walls.append(time.perf_counter() - wall)
    told |= {"first": megabytes / seconds[0], "memory": (_memory("VmHWM") - before) / 1e6, "wall": min(walls)}
    return told | ({"later": megabytes / min(seconds[1:])} if seconds[1:] else {})


def disagreements_here(engine: str, tokenizer: Path) -> dict[str, Any]:
    """On how many documents of the adversarial set, by class, an engine differs from the installed reference."""
    from dataprep_assets.tokenization.bundle import TokenizerBundle
    from dataprep_assets.tokenization.certificate import compare
    from dataprep_assets.tokenization.engines import ReferenceEngine, fast_engine

    bundle = TokenizerBundle.load(tokenizer)
    found = compare(bundle, fast_engine(engine, bundle, "text"), ReferenceEngine(bundle, "text"))
    return {"of": sum(found.compared.values()), "differing": +Counter(found.differing)}


def _run(*arguments: object, newest: bool = False, threads: int = 1) -> dict[str, Any]:
    """What a process prints; with `newest` it imports that `tokenizers`."""
    path = [*([str(newest_tokenizers.FOLDER)] if newest else []), str(REPOSITORY)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "FASTOKENS_BPE_THREADS": str(threads),
        "RAYON_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "dataprep_assets_tests.bench.fast_engines", *map(str, arguments)]
    out = subprocess.run(command, env=environment, capture_output=True, text=True)
    if out.returncode:
        # what an engine says of a tokenizer that it cannot load
        return {"refused": re.sub(r"^\S*Error: ", "", out.stderr.strip().rpartition("\n")[2])}
    told: dict[str, Any] = json.loads(out.stdout)
    return told


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print a table for each corpus; 1 if an engine disagrees on other than newer characters."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.bench.fast_engines", description=__doc__)
    parser.add_argument("--data", type=Path, default=CORPUS, help="folder with .jsonl.zst files")
    parser.add_argument("--tokenizer", type=Path, action="append", help="a folder; several times for more")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--no-languages", action="store_true", help="leave the corpus of forty languages out")
    parser.add_argument("--here", nargs=3, metavar=("ENGINE", "TOKENIZER", "DATA"), help=argparse.SUPPRESS)
    parser.add_argument("--differing", nargs=2, metavar=("ENGINE", "TOKENIZER"), help=argparse.SUPPRESS)
    asked = parser.parse_args(argv)
    if asked.here or asked.differing:
        told = (
            measure_here(asked.here[0], Path(asked.here[1]), Path(asked.here[2]))
            if asked.here
            else disagreements_here(asked.differing[0], Path(asked.differing[1]))
        )
        print(json.dumps(told))
        return 0
    folders = asked.tokenizer or tokenizers()
    code = _print_disagreements(folders)
    with tempfile.TemporaryDirectory(prefix="dataprep-languages-") as languages:
        corpora = {"shared corpus": asked.data}
        if not asked.no_languages:
            write_languages(Path(languages), files=6, documents_a_file=2_000)
            corpora["forty languages"] = Path(languages)
        for name, data in corpora.items():
            _print_speeds(name, data, folders, asked.runs)
    return code


def _engines() -> list[str]:
    from dataprep_assets.tokenization.engines import FAST_ENGINES, installed

    there = [name for name in FAST_ENGINES if installed(name)]
    return [*there, *([NEWEST] if newest_tokenizers.absent() is None else []), REFERENCE]


def _print_disagreements(folders: Sequence[Path]) -> int:
    from dataprep_assets.tokenization.certificate import NEW_UNICODE

    others = 0
    for folder in folders:
        for engine in _engines()[: -1 if newest_tokenizers.absent() else -2]:
            told = _run("--differing", engine, folder)
            if "refused" in told:
                print(f"{_called(folder)}: {engine}: {told['refused']}")
                continue
            differing = told["differing"]
            others += sum(count for kind, count in differing.items() if kind != NEW_UNICODE)
            shown = ", ".join(f"{count} of class {kind}" for kind, count in differing.items()) or "none"
            print(f"{_called(folder)}: {engine} differs on {shown} of {told['of']:,} adversarial documents", flush=True)
    return int(others > 0)


def _print_speeds(name: str, data: Path, folders: Sequence[Path], runs: int) -> None:
    found: dict[tuple[Path, str], Found] = {}
    for _ in range(runs):
        for folder in folders:
            for engine in _engines():
                of = ("--here", engine, folder, data)
                told = _run(*of, newest=engine == NEWEST)
                if "refused" in told:
                    continue
                if engine not in (REFERENCE, NEWEST):
                    told["threads"] = told["wall"] / _run(*of, threads=_THREADS)["wall"]
                found.setdefault((folder, engine), Found()).add(told)
    print(f"\n{name}, {data}: medians of {runs} runs in turn")
    print(
        "| tokenizer | engine | loading, CPU-s | first pass, MB a CPU-s | later passes | memory, MB | "
        f"its {_THREADS} threads, times as soon |\n|---|---|---|---|---|---|---|"
    )
    for (folder, engine), each in found.items():
        called = REFERENCE if engine == NEWEST else engine
        print(f"| {_called(folder)} | {called} {each.version} | {' | '.join(each.cells())} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
