"""Run `dataprep run` over an animal in a `dataprep init` project, and report its resources and outcome.

An animal is *read* if the run succeeds within the limits, and *refused* if it ends with a sentence that names its file.
Everything else is a fault: more memory than the limit without being ended, a traceback, a missing name, no end.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from dataprep_assets.bounds import MEMORY, STALL
from dataprep_assets_tests.forked import Forked, start
from dataprep_assets_tests.tokenization.chat.tokenizers import write_chat_tokenizer
from dataprep_assets_tests.tools.zoo.animals import Animal

MEMORY_BYTES = 1 << 30
CPU_SECONDS = 60
_SLACK = 1.25
"""A watcher samples a few times per second, and cannot see usage in between."""
_WALL_SECONDS = 1_500
_HEADER = re.compile(r"^(zoo_[0-9]{4}):.*$", re.MULTILINE)
_FINISHED = "\nchecks: "
"""A line of the summary at the end of a finished dataset."""
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The outcome of a run over an animal.

    Attributes:
        animal: The animal.
        what: A description of its file.
        code: The exit code of a run of only this animal, or the one it would have had.
        cpu_seconds: The total of all processes.
        peak_bytes: The peak memory of a single process.
        said: The last line that names it, or else the last line.
        fault: The mistake in the outcome; empty if there is none.
    """

    animal: Animal
    what: str
    code: int
    cpu_seconds: float
    peak_bytes: int
    said: str
    fault: str

    @property
    def end(self) -> str:
        """The outcome: `read`, `refused` or `fault`."""
        return "fault" if self.fault else "read" if self.code == 0 else "refused"


class Keeper:
    """A project with animals as datasets, some at a time."""

    def __init__(self, home: Path) -> None:
        home.mkdir(exist_ok=True)
        self._home, self._project = home, home / "cage"
        self._run(["init", str(self._project)], cwd=home)
        write_chat_tokenizer(home / "animals" / "chat_tokenizer")

    def show(self, animals: Sequence[Animal]) -> Iterator[Seen]:
        """Run `dataprep run` over some animals, and yield the outcome of each.

        One with a fault is run again by itself, because another may have filled the process before it. Animals after
        one that ended the run are run again in halves.
        """
        seen = list(self._shown(animals))
        well = [one for one in seen if len(animals) == 1 or not one.fault]
        yield from well
        faulty = [one.animal for one in seen if one not in well]
        for animal in faulty:
            yield from self.show([animal])
        hidden = [animal for animal in animals if animal not in {one.animal for one in seen}]
        half = len(hidden) if len(hidden) < len(animals) else (len(hidden) + 1) // 2
        for some in (hidden[:half], hidden[half:]):
            if some:
                yield from self.show(some)

    def _shown(self, animals: Sequence[Animal]) -> Iterator[Seen]:
        """Return the outcome of each animal that a single run over all of them shows."""
        names = [animal.dataset for animal in animals]
        what = dict[Animal, str]()
        for animal in animals:
            folder = self._home / "animals" / animal.dataset
            folder.mkdir()
            if animal.has_good:
                (folder / "good.jsonl").write_bytes(animal.good())
            self._declare(animal, animal.attributes(self._project, folder))
            if animal.kind != "artifact":
                what[animal] = animal.write(folder)
        # An animal of the kind `artifact` changes a finished corpus, so the corpus is built first.
        if finished := [animal for animal in animals if animal.kind == "artifact"]:
            self._run(["run", *(animal.dataset for animal in finished)], self._project)
            what |= {animal: animal.write(self._home / "artifacts" / animal.dataset) for animal in finished}
        ran = self._run(["run", *names], self._project)
        for name in names:
            shutil.rmtree(self._home / "animals" / name)
            shutil.rmtree(self._declared(name))
        for name in ("artifacts", "instance"):
            shutil.rmtree(self._home / name, ignore_errors=True)
        alone = len(animals) == 1
        for animal in animals:
            said = ran.said if alone else ran.said_of(animal)
            if said is not None:
                yield _seen(animal, what[animal], ran, said, alone=alone)

    def _declared(self, dataset: str) -> Path:
        return self._project / self._project.name / "defs" / dataset

    def _declare(self, animal: Animal, attributes: Mapping[str, object]) -> None:
        kind = "TokenizedCorpus" if animal.pipeline == "corpus" else "TrainingBlend"
        folder = self._declared(animal.dataset)
        folder.mkdir(exist_ok=True)
        value = {"type": f"dataprep_assets.components.{kind}", "attributes": json.loads(json.dumps(attributes))}
        (folder / "defs.yaml").write_text(yaml.safe_dump(value))

    def _environment(self) -> dict[str, str]:
        bounds = {MEMORY: str(MEMORY_BYTES), STALL: str(CPU_SECONDS)}
        places = {"DAGSTER_HOME": str(self._home / "instance"), "DATAPREP_ROOT": str(self._home / "artifacts")}
        return {**os.environ, **bounds, **places, "PYTHONPATH": str(self._project)}

    def _run(self, arguments: list[str], cwd: Path) -> "_Ran":
        with tempfile.TemporaryFile() as out:
            others = {*os.listdir("/proc")}
            program = start(
                ["-m", "dataprep_assets.cli", *arguments],
                env=self._environment(),
                cwd=cwd,
                stdout=out.fileno(),
                stderr=out.fileno(),
                own_session=True,
            )
            with _watched(program, out.fileno(), others) as usage:
                try:
                    code = program.wait(_WALL_SECONDS)
                except subprocess.TimeoutExpired:
                    os.killpg(program.pid, 9)
                    code = program.wait(60)
            out.seek(0)
            return _Ran(code, out.read().decode(errors="replace"), usage)


@dataclass(frozen=True)
class _Ran:
    """A finished command: its exit code, its whole output, and its resources for each dataset."""

    code: int
    said: str
    usage: "dict[str, _Usage]"

    def said_of(self, animal: Animal) -> str | None:
        """Return the output about one of several animals; None if it may not have had its turn, or not completely."""
        # The list has the text before the first header, then the name and the text of each dataset.
        parts = _HEADER.split(self.said)
        texts = [text for name, text in zip(parts[1::2], parts[2::2], strict=True) if name == animal.dataset]
        if not texts:  # the dataset may have been refused before any run
            lines = [line for line in parts[0].splitlines() if animal.dataset in line or f"{animal.file}" in line]
            return "\n".join(lines) if lines and self.code > 0 else None
        was_last = parts[-2] == animal.dataset
        return None if was_last and self.code < 0 else "\n".join(texts)


def _seen(animal: Animal, what: str, ran: _Ran, said: str, *, alone: bool) -> Seen:
    usages = ran.usage.values() if alone else [ran.usage.get(animal.dataset, _Usage())]
    peak, seconds = max((one.peak_bytes for one in usages), default=0), sum(one.cpu_seconds for one in usages)
    code = ran.code if alone or ran.code < 0 else int(_FINISHED not in said)
    lines = [line for line in said.splitlines() if line.strip()]
    return Seen(
        animal=animal,
        what=what,
        code=code,
        cpu_seconds=seconds,
        peak_bytes=peak,
        said=next((line for line in reversed(lines) if animal.file in line), lines[-1] if lines else "")[:600],
        fault=_fault(animal, code, said, peak),
    )


def _fault(animal: Animal, code: int, said: str, peak_bytes: int) -> str:
    if "Traceback" in said:
        return "a stack"
    if code < 0:
        return f"ended by signal {-code}"
    if peak_bytes > MEMORY_BYTES * _SLACK:
        return f"took {peak_bytes:,} bytes of memory"
    if code and animal.file not in said:
        return "refused, and its name is not told"
    return ""


@dataclass
class _Usage:
    """The resources of a session's processes: the peak memory of a single one, and CPU seconds of all."""

    peak_bytes: int = 0
    cpu_seconds: float = 0.0


@contextmanager
def _watched(program: Forked, output: int, others: set[str]) -> Iterator[dict[str, _Usage]]:
    """Return the resources of the processes of a program's session, by the last dataset that the output named.

    `others` are the ids of processes that existed before.
    """
    found, over, seconds = {"": _Usage()}, threading.Event(), dict[int, float]()
    now, at = "", 0

    def look() -> None:
        nonlocal now, at
        while not over.wait(0.2):
            text = os.pread(output, 1 << 20, at)
            whole = text[: text.rfind(b"\n") + 1]
            at += len(whole)
            now = next(iter(_HEADER.findall(whole.decode(errors="replace"))[::-1]), now)
            usage = found.setdefault(now, _Usage())
            for pid in filter(str.isdigit, {*os.listdir("/proc")} - others):
                try:
                    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    if int(fields[3]) != program.pid:
                        continue
                    _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
                except (OSError, ValueError, IndexError):
                    continue
                usage.peak_bytes = max(usage.peak_bytes, (int(resident) - int(shared)) * _PAGE)
                took = (int(fields[11]) + int(fields[12])) / _TICKS
                usage.cpu_seconds += took - seconds.get(int(pid), 0.0)
                seconds[int(pid)] = took

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()
