"""Run `dataprep verify` over a copy of the samples that `make demo` has built, after each kind of change.

`python -m dataprep_assets_tests.tools.changed_samples` exits with 1 if it reports a defect in valid datasets.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import zstandard

from dataprep_assets.definitions import PROJECT_ROOT

_COPIED = ("dataprep_assets", "resources", "pyproject.toml", "workspace.yaml", ".dagster", ".dataprep")
_NEW = "An appendix that the samples did not have, number {}: it is read from now on, once in each epoch."


@dataclass(frozen=True)
class Samples:
    """A copy of the project with its built artifacts."""

    root: Path

    @property
    def folder(self) -> Path:
        """The folder of the samples' declarations."""
        return self.root / "dataprep_assets" / "defs" / "samples"

    def __call__(self, *arguments: str) -> None:
        """A command of the project; raises CalledProcessError for another exit code than 0."""
        store, home = self.root / ".dataprep" / "artifacts", self.root / ".dagster"
        paths = {"DATAPREP_ROOT": str(store), "DAGSTER_HOME": str(home), "PYTHONPATH": str(self.root)}
        print(f"$ dataprep {' '.join(arguments)}", flush=True)
        command = [sys.executable, "-m", "dataprep_assets.cli", *arguments]
        done = subprocess.run(command, cwd=self.root, env={**os.environ, **paths}, capture_output=True, text=True)
        if done.returncode or arguments == ("verify",):
            print(done.stdout + done.stderr, flush=True)
        done.check_returncode()


def append(samples: Samples) -> None:
    """Add a file to a corpus, to a release of the same files, and to a corpus with deduplication."""
    lines = [json.dumps({"text": _NEW.format(at), "meta": {"redpajama_set_name": "RedPajamaBook"}}) for at in range(40)]
    data = "\n".join([*lines, ""]).encode()
    corpus = samples.folder / "sample_corpus" / "data" / "train" / "chunk9" / "appendix.jsonl.zst"
    corpus.parent.mkdir()
    corpus.write_bytes(zstandard.compress(data))
    (samples.folder / "sample_duplicates" / "data" / "train" / "appendix.jsonl").write_bytes(data)
    samples("run", "sample_corpus", "sample_release", "sample_duplicates")


def remove(samples: Samples) -> None:
    """Remove documents from a corpus and from a corpus with deduplication."""
    ids = samples.root / "ids.txt"
    patterns = {"sample_corpus": "train/chunk1/*", "sample_duplicates": "train/*"}
    for dataset, pattern in patterns.items():
        source = samples.folder / dataset / "data"
        file = sorted(source.glob(pattern))[0].relative_to(source)
        ids.write_text(f"{file}:2\n{file}:5\n")
        samples("retract", dataset, "--ids", str(ids))
    samples("run", *patterns)


def revise(samples: Samples) -> None:
    """Make a revision of the schedule with the current data of its corpora."""
    samples("schedule", "sample_schedule", "--from-step", "100")
    samples("run", "sample_schedule")


def weigh(samples: Samples) -> None:
    """Change a weight of a blend, which keeps the run of the old weights next to the new one."""
    path = samples.folder / "sample_blend_pretrain" / "blend.json"
    value = json.loads(path.read_text())
    value["datasets"][0]["weight"] = 2 * value["datasets"][0]["weight"]
    path.write_text(json.dumps(value))
    samples("run", "sample_blend_pretrain")


CHANGES: tuple[tuple[Callable[[Samples], None], ...], ...] = ((append, remove), (revise, weigh))
"""The changes before each verification: first of the corpora, then of the datasets that use them."""


def main() -> int:
    """Change the copy, and verify it after each group of changes."""
    with tempfile.TemporaryDirectory(prefix="dataprep-samples-") as folder:
        samples = Samples(Path(folder))
        for name in _COPIED:
            source = PROJECT_ROOT / name
            if source.is_dir():
                shutil.copytree(source, samples.root / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, samples.root / name)
        try:
            for group in CHANGES:
                for change in group:
                    print(f"{change.__name__}: {change.__doc__}", flush=True)
                    change(samples)
                samples("verify")
        except subprocess.CalledProcessError as error:
            print(f"exit code {error.returncode}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
