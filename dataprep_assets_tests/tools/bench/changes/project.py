"""A `dataprep init` project under another name, with its own corpora, and its commands."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dataprep_assets.integrity.receipt import NAME
from dataprep_assets_tests import forked
from dataprep_assets_tests.fakes.hub_server import HubServer
from dataprep_assets_tests.tools.bench.changes.corpus import Corpus

PROJECT = "vineyard"
_STARTED_EVERY = 25
"""One of this many commands starts Python itself; the others are forked from a process that has imported Dagster."""


class Named(Protocol):
    """A dataset of the project."""

    name: str


@dataclass(frozen=True)
class Made:
    """A finished artifact: its folder, its receipt, and a mark that changes with each build."""

    folder: Path
    receipt: Mapping[str, Any]
    written: tuple[int, int]

    def files(self) -> dict[str, bytes]:
        """Return its files except the receipt."""
        files = [path for path in self.folder.rglob("*") if path.is_file() and path.name != NAME]
        return {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in files}


class Project:
    """A project in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.defs, self.root = folder / PROJECT / "defs", folder / ".dataprep" / "artifacts"
        self._commands = 0
        self._environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("DATAPREP_", "DAGSTER_", "HF_"))
        } | {"HF_HUB_CACHE": str(folder / "mirror"), "HF_HUB_DISABLE_XET": "1", "VINEYARD_KEY": "a grape " * 8}

    @classmethod
    def made(cls, folder: Path) -> "Project":
        """Create a project with the command."""
        project = cls(folder / PROJECT)
        folder.mkdir(parents=True, exist_ok=True)
        project._run(["init", PROJECT], folder).check_returncode()
        return project

    def copied(self, folder: Path, corpus: Corpus) -> "Project":
        """Return a copy in which only the manifest of a corpus is built.

        The shard of a file depends on the order of appends, so a build from scratch must have the same plan.
        """
        shutil.rmtree(folder, ignore_errors=True)
        target = folder / PROJECT
        shutil.copytree(self.folder, target, ignore=shutil.ignore_patterns(".dataprep", "mirror", ".dagster"))
        (target / ".dagster").mkdir(mode=0o700)
        shutil.copy(self.folder / ".dagster" / "dagster.yaml", target / ".dagster")
        copy = Project(target)
        shutil.copytree(self.root / corpus.name / "manifest", copy.root / corpus.name / "manifest")
        (copy.root / corpus.name).chmod(0o700)  # required if the corpus is sensitive
        return copy

    def corpus(
        self, name: str, sources: Path, seed: int, hub: HubServer | None = None, *, selects: bool = False
    ) -> Corpus:
        """Declare a new corpus in the project."""
        corpus = Corpus(sources, seed, name=name, home=self.defs / name, root=self.root, hub=hub, selects=selects)
        corpus.declare()
        return corpus

    def command(self, name: str, dataset: Named, *options: str) -> subprocess.CompletedProcess[str]:
        """Run `dataprep NAME DATASET …` in a process."""
        return self._run([name, dataset.name, *options], self.folder)

    def _run(self, words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
        program = ["-m", "dataprep_assets.cli", *words]
        self._commands += 1
        if self._commands % _STARTED_EVERY == 1:
            command = [sys.executable, *program]
            return subprocess.run(command, cwd=folder, env=self._environment, capture_output=True, text=True)
        return forked.run(program, cwd=folder, env=self._environment)

    def announced(self, dataset: Named) -> dict[str, dict[str, Any]]:
        """Return artifact → its entry in `run --dry-run --json`. Raises CalledProcessError if there is no output."""
        done = self.command("run", dataset, "--dry-run", "--json")
        if done.returncode not in (0, 1) or not done.stdout:
            done.check_returncode()
            raise subprocess.CalledProcessError(done.returncode, "run --dry-run --json", done.stdout, done.stderr)
        told = json.loads(done.stdout.splitlines()[-1])["rebuild"]
        return {one["name"].removeprefix(f"{dataset.name}/"): one for one in told}

    def forget(self, corpus: Corpus) -> None:
        """Remove all artifacts of a corpus, and Dagster's records."""
        shutil.rmtree(self.root / corpus.name, ignore_errors=True)
        for path in (self.folder / ".dagster").iterdir():
            if path.name != "dagster.yaml":
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def made(root: Path) -> dict[str, Made]:
    """Return artifact → its current state, below the folder of a dataset; a damaged receipt counts as empty."""
    found = {}
    for path in sorted(root.rglob(NAME)):
        if "/." in f"/{path.relative_to(root)}":
            continue
        try:
            receipt = json.loads(path.read_bytes())
        except ValueError:
            receipt = {}
        written = path.stat()
        folder = path.parent
        found[folder.relative_to(root).as_posix()] = Made(folder, receipt, (written.st_ino, written.st_mtime_ns))
    return found


def last_lines(text: str, lines: int = 6) -> str:
    """Return the end of a command's output as one line."""
    return " | ".join([line.strip() for line in text.splitlines() if line.strip()][-lines:])
