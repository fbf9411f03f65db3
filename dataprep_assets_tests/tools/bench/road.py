"""Measure how much code a command uses: `python -m dataprep_assets_tests.tools.bench.road`.

In a `dataprep init` project with two text files and the conversation sample, it counts for each command the modules of
`dataprep_assets` in which a function was called, by `sys.setprofile` in all threads of its process, and these
functions. Workers are not counted: at this size the run's own process does the work, or workers use the same code.
"""

import argparse
import inspect
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import yaml

from dataprep_assets_tests.conftest import CHECKOUT
from dataprep_assets_tests.tools.bench.invented_text import SEPARATORS, train_tokenizer
from dataprep_assets_tests.tools.bench.retract import environment

SAMPLES, CHAT = CHECKOUT / "dataprep_assets" / "defs" / "samples", "sample_blend_sft"
TARGETS = {"first run": 120, "status": 70}


def _followed(out: Path, arguments: Sequence[str]) -> int:
    """Run the command in this process, and write the called modules and functions of the project to a file."""
    called: set[CodeType] = set()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            called.add(frame.f_code)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        from dataprep_assets.cli import main as command

        try:
            # Pass the arguments explicitly, because the command then works in this process and not in a watched child
            # process.
            return int(command(list(arguments)) or 0)
        except SystemExit as end:
            return int(end.code or 0)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        # Exclude the bodies of modules and classes, which every import runs and which have no local variables. Also
        # exclude page templates, which are compiled to functions but are not modules.
        ours = [
            c
            for c in called
            if "/dataprep_assets/" in c.co_filename
            and c.co_filename.endswith(".py")
            and c.co_flags & inspect.CO_OPTIMIZED
        ]
        out.write_text(json.dumps({"modules": sorted({c.co_filename for c in ours}), "functions": len(ours)}))


def write_project(folder: Path) -> None:
    """Write declarations of a corpus of two files with two views, and of the chat data sample."""
    subprocess.run([sys.executable, "-m", "dataprep_assets.cli", "init", str(folder)], check=True, capture_output=True)
    defs = folder / folder.name.replace("-", "_") / "defs"
    texts = [f"document {number} of the road, and {number * number} more words" for number in range(200)]
    train_tokenizer(folder / "tokenizer", texts, size=600)
    (defs / "road" / "data").mkdir(parents=True)
    for name, part in (("a", texts[:100]), ("b", texts[100:])):
        lines = [json.dumps({"text": text}) + "\n" for text in part]
        (defs / "road" / "data" / f"{name}.jsonl").write_text("".join(lines))
    corpus = {
        "dataset": "road",
        "source": {"kind": "local", "path": "./data"},
        "include": ["*.jsonl"],
        "splits": {"train": ["*"]},
        "tokenizer": {"path": str(folder / "tokenizer")},
        "document": {"separator": SEPARATORS[0]},
        "views": ["nanogpt", "megatron"],
    }
    value = {"type": "dataprep_assets.components.TokenizedCorpus", "attributes": corpus}
    (defs / "road" / "defs.yaml").write_text(yaml.safe_dump(value))
    shutil.copytree(SAMPLES / CHAT, defs / CHAT)


def measured(folder: Path) -> dict[str, tuple[int, int]]:
    """Return case → called modules and functions."""
    project = folder / "their-data"
    write_project(project)
    ids = folder / "ids"
    ids.write_text("a.jsonl:3\n")
    cases = {
        "first run": ["run", "road"],
        "nothing to do": ["run", "road"],
        "status": ["status", "road"],
        "chat to packed SFT": ["run", CHAT],
        "retract a row": ["retract", "road", "--ids", str(ids)],
    }
    found = {}
    for case, words in cases.items():
        out = folder / "called.json"
        line = [sys.executable, "-m", "dataprep_assets_tests.tools.bench.road"]
        done = subprocess.run(
            [*line, "--follow", str(out), "--project", str(project), *words],
            # Use an empty cache, because a tokenizer that is already in the user's cache needs less code.
            env=environment(folder, "place") | {"XDG_CACHE_HOME": str(folder / "cache")},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{case}: exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        value = json.loads(out.read_text())
        found[case] = (len(value["modules"]), value["functions"])
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if more modules than the targets are used."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["--follow"]:
        return _followed(Path(words[1]), words[2:])
    argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.bench.road", description=__doc__).parse_args(
        words
    )
    with tempfile.TemporaryDirectory(prefix="dataprep-bench-") as name:
        found = measured(Path(name))
    print(f"{'':<22}{'modules':>10}{'functions':>12}{'target':>10}")
    for case, (modules, functions) in found.items():
        print(f"{case:<22}{modules:>10}{functions:>12}{TARGETS.get(case, ''):>10}")
    return int(any(found[case][0] > most for case, most in TARGETS.items()))


if __name__ == "__main__":
    sys.exit(main())
