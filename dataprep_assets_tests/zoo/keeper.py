"""Runs `dataprep run` over an animal in a project of `dataprep init`, and says what it took and how it ended.

An animal is *read* if the run ends well in the bounds, *refused* if it ends with a sentence that names its file. All
else is a fault: more memory than the bound without being ended, a stack, a name that is not there, no end.
"""

import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from dataprep_assets.bounds import MEMORY, STALL
from dataprep_assets_tests.forked import Forked, start
from dataprep_assets_tests.tokenization.chat.tokenizers import write_chat_tokenizer
from dataprep_assets_tests.zoo.animals import Animal

MEMORY_BYTES = 1 << 30
CPU_SECONDS = 60
_SLACK = 1.25
"""A watcher looks ten times a second: what is taken in between is not told."""
_WALL_SECONDS = 1_500
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """How a run over an animal went. `fault` is what is wrong with it; `said` the last line of what it printed."""

    animal: Animal
    what: str
    code: int
    cpu_seconds: float
    peak_bytes: int
    said: str
    fault: str

    @property
    def end(self) -> str:
        """`read`, `refused` or `fault`."""
        return "fault" if self.fault else "read" if self.code == 0 else "refused"


class Keeper:
    """A project, and a folder for one animal at a time."""

    def __init__(self, home: Path) -> None:
        self._home, self._project = home, home / "cage"
        self._run(["init", str(self._project)], cwd=home)
        write_chat_tokenizer(home / "chat_tokenizer")

    def _environment(self) -> dict[str, str]:
        bounds = {MEMORY: str(MEMORY_BYTES), STALL: str(CPU_SECONDS)}
        places = {"DAGSTER_HOME": str(self._home / "instance"), "DATAPREP_ROOT": str(self._home / "artifacts")}
        return {**os.environ, **bounds, **places, "PYTHONPATH": str(self._project)}

    def _run(self, arguments: list[str], cwd: Path) -> "tuple[int, str, _Usage]":
        with tempfile.TemporaryFile() as err:
            program = start(
                ["-m", "dataprep_assets.cli", *arguments],
                env=self._environment(),
                cwd=cwd,
                stdout=err.fileno(),
                stderr=err.fileno(),
                own_session=True,
            )
            with _watched(program) as usage:
                try:
                    code = program.wait(_WALL_SECONDS)
                except subprocess.TimeoutExpired:
                    os.killpg(program.pid, 9)
                    code = program.wait(60)
            err.seek(0)
            return code, err.read().decode(errors="replace"), usage

    def show(self, animal: Animal) -> Seen:
        """Run `dataprep run` over an animal."""
        folder = self._home / "animals"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        if animal.has_good:
            (folder / "good.jsonl").write_bytes(animal.good())
        self._declare(animal, animal.attributes(self._project, folder))
        if animal.kind == "artifact":  # of a finished corpus, which is run again
            self._run(["run", "zoo"], self._project)
            what = animal.write(self._home / "artifacts" / "zoo")
        else:
            what = animal.write(folder)
        code, said, usage = self._run(["run", "zoo"], self._project)
        for name in ("artifacts", "instance"):
            shutil.rmtree(self._home / name, ignore_errors=True)
        lines = [line for line in said.splitlines() if line.strip()]
        return Seen(
            animal=animal,
            what=what,
            code=code,
            cpu_seconds=usage.cpu_seconds,
            peak_bytes=usage.peak_bytes,
            said=next((line for line in reversed(lines) if animal.name in line), lines[-1] if lines else "")[:600],
            fault=_fault(animal, code, said, usage),
        )

    def _declare(self, animal: Animal, attributes: Mapping[str, object]) -> None:
        kind = "TokenizedCorpus" if animal.pipeline == "corpus" else "TrainingBlend"
        folder = self._project / self._project.name / "defs" / "zoo"
        folder.mkdir(exist_ok=True)
        value = {"type": f"dataprep_assets.components.{kind}", "attributes": json.loads(json.dumps(attributes))}
        (folder / "defs.yaml").write_text(yaml.safe_dump(value))


def _fault(animal: Animal, code: int, said: str, usage: "_Usage") -> str:
    if "Traceback" in said:
        return "a stack"
    if code < 0:
        return f"ended by signal {-code}"
    if usage.peak_bytes > MEMORY_BYTES * _SLACK:
        return f"took {usage.peak_bytes:,} bytes of memory"
    # of a blend's dataset that has no other file its name says as much
    names = [animal.name] if animal.pipeline == "corpus" else [animal.name, "animals"]
    if code and not any(name in said for name in names):
        return "refused, and its name is not told"
    return ""


@dataclass
class _Usage:
    """What the processes of a session took: the most memory that one had alone, and CPU seconds of all."""

    peak_bytes: int = 0
    cpu_seconds: float = 0.0


@contextmanager
def _watched(program: Forked) -> Iterator[_Usage]:
    usage, over, seconds = _Usage(), threading.Event(), dict[int, float]()

    def look() -> None:
        while not over.wait(0.1):
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    if int(fields[3]) != program.pid:
                        continue
                    _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
                except (OSError, ValueError, IndexError):
                    continue
                usage.peak_bytes = max(usage.peak_bytes, (int(resident) - int(shared)) * _PAGE)
                seconds[int(pid)] = (int(fields[11]) + int(fields[12])) / _TICKS
            usage.cpu_seconds = sum(seconds.values())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield usage
    finally:
        over.set()
        thread.join()
