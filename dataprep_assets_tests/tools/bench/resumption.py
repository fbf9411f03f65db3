"""How loaders resume, tried side by side: `python -m dataprep_assets_tests.tools.bench.resumption [--energon PYTHON]`.

Two sources of 1,200 and 800 samples are read three to one. After 400 samples the run stops and goes on from the state
that each loader keeps: as it was, on two ranks, with another batch, with another mixture, and after the second source
has got 400 samples more. Every sample is a number, so what is read is known. In the first pass of a source, until it
has given as many samples as it has, no sample should come twice; as many as do are left out.

Ours is the schedule's sampler with a revision for each change. The others are made anew with the changed settings, and
given the state; what they do is what their own code does. Megatron's has no state but the number of samples consumed.
Energon is read by a Python in whose environment it is installed (`pip install megatron-energon`), if one is given.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.serving.sampler.next_revision import CurrentSource, RevisionRequest, add_revision
from dataprep_assets.serving.sampler.sampler import Sampler
from dataprep_assets.serving.sampler.training_schedule import ScheduleHistory
from dataprep_assets_tests.readers.families import GRAIN, MEGATRON, MOSAICML
from dataprep_assets_tests.readers.megatron import build_pair, opened_schedule
from dataprep_assets_tests.readers.mosaicml import work_of_steps, write_windows
from dataprep_assets_tests.readers.process import in_process_of

FIRST, SECOND, MORE, LENGTH, STOP = 1200, 800, 400, 16, 400
LONG = 4800
"""The number of samples after which the first pass of either source is over, whatever changed."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of a run between two states: the number of samples that it reads, and its settings."""

    samples: int
    weights: tuple[int, int] = (3, 1)
    batch: int = 8
    ranks: int = 1
    grown: bool = False

    @property
    def sizes(self) -> tuple[int, int]:
        """The numbers of samples of the sources."""
        return FIRST, SECOND + MORE * self.grown


Read = tuple[list[int], int]
"""The samples in the order of steps, those of the second source from `FIRST` on; and the bytes of the state."""


def ours(_: Path, phases: list[Phase]) -> Read:
    """Read with the sampler of a schedule."""
    schedule: ScheduleHistory | None = None
    found: list[int] = []
    step = state = 0

    def nothing(*_: Any) -> Any:
        raise AssertionError("no shard has changed")

    for phase in phases:
        shards = [(("a-0", "a" * 64, FIRST),), (("b-0", "b" * 64, SECOND), ("b-1", "c" * 64, MORE))[: 1 + phase.grown]]
        sources = [
            CurrentSource(
                name=name, dataset=name, split="train", dtype="uint16", tokenizer="t", weight=weight,
                shards=tuple((at, content, samples * LENGTH) for at, content, samples in of),
            )
            for name, weight, of in zip("ab", phase.weights, shards, strict=True)
        ]  # fmt: skip
        wanted = RevisionRequest(
            name="run", batch=phase.batch, sequence_length=LENGTH, seed=0, samples="windows", steps=10_000
        )
        if not found or replace(phase, samples=0, ranks=1) != replace(phases[0], samples=0, ranks=1):
            schedule = add_revision(schedule, wanted, sources, documents=nothing, packs=nothing, from_step=step)
        assert schedule is not None
        sampler = Sampler(schedule)
        # List the positions of each step rank by rank, in the order in which the other loaders read.
        positions = np.concatenate([sampler.find_positions(step, rank, phase.ranks) for rank in range(phase.ranks)])
        rule, steps = sampler.find_rule(step), np.arange(step, step + phase.samples // phase.batch)
        spans = sampler.find_spans(rule, ((steps - rule.first)[:, None] * phase.batch + positions).ravel())
        found += (FIRST * spans.source + SECOND * spans.shard + spans.start // LENGTH).tolist()
        step += len(steps)
        state = len(json.dumps({"schedule": "run", "digest": schedule.digest, "step": step}))
    return found, state


@in_process_of(MOSAICML)
def mosaicml(folder: Path, phases: list[Phase]) -> Read:
    """Read with MosaicML's `StreamingDataset`: the samples that its own partition gives every rank."""
    found: list[int] = []
    state = {"epoch": 0, "sample_in_epoch": 0}
    size = 0
    for number, phase in enumerate(phases):
        streams = []
        for name, weight, count in zip("ab", phase.weights, phase.sizes, strict=True):
            # Copy each stream into a new folder, because streaming refuses a folder that another stream uses.
            local = Path(tempfile.mkdtemp(dir=folder)) / f"{name}-{number}"
            shutil.copytree(folder / f"mds-{name}-{count}", local)
            streams.append((local, weight / sum(phase.weights)))
        order, state, size = work_of_steps(streams, state, phase.samples, phase.batch, phase.ranks)
        found += order
    return found, size


@in_process_of(GRAIN)
def grain(_: Path, phases: list[Phase]) -> Read:
    """Read with grain's `MapDataset`, shuffled and mixed; each rank has its slice."""
    import grain.python as library

    found: list[int] = []
    state: Any = None
    for phase in phases:
        sources = [
            library.MapDataset.source(np.arange(first, first + count)).shuffle(seed=at).repeat()
            for at, (first, count) in enumerate(zip((0, FIRST), phase.sizes, strict=True))
        ]
        mixed = library.MapDataset.mix(sources, weights=[weight / sum(phase.weights) for weight in phase.weights])
        ranks = [
            iter(mixed[rank :: phase.ranks].batch(phase.batch // phase.ranks).to_iter_dataset())
            for rank in range(phase.ranks)
        ]
        for batches in ranks:
            if state is not None:
                batches.set_state(state)
        for _ in range(phase.samples // phase.batch):
            for batches in ranks:
                found += next(batches).tolist()
        state = ranks[0].get_state()
    return found, len(json.dumps(state))


@in_process_of(MEGATRON)
def megatron(folder: Path, phases: list[Phase]) -> Read:
    """Read with megatron-core's `BlendedDataset`, in order, from the number of consumed samples on."""
    found: list[int] = []
    run = STOP + LONG
    for phase in phases:
        prefixes = [str(folder / f"pair-{name}-{count}") for name, count in zip("ab", phase.sizes, strict=True)]
        cache = Path(tempfile.mkdtemp(dir=folder))
        with opened_schedule(
            list(phase.weights), prefixes, run, cache, length=LENGTH, tokenizer={"class": "bench"}
        ) as train:
            # Every token of a document is the document's number, and a sample has one token more than the document with
            # which it begins. So the middle token of a sample identifies the document.
            samples = (int(train[at]["tokens"][LENGTH // 2]) for at in range(len(found), len(found) + phase.samples))
            found += [*samples]
    return found, len(str(len(found)))


def energon(python: str, folder: Path, phases: list[Phase]) -> Read:
    """Read with Megatron-Energon's savable loader: a blend of two sources of tar files, shuffled as in its
    documentation.
    """
    asked = {
        "folder": str(folder),
        "sources": [("a", 0, FIRST), ("b", FIRST, SECOND), ("b", FIRST, SECOND + MORE)],
        "phases": [{**vars(phase), "sizes": phase.sizes} for phase in phases],
    }
    script = Path(__file__).with_name("their_energon.py")
    done = subprocess.run([python, script], input=json.dumps(asked), capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    if "refused" in answer:
        raise RefusedError(answer["refused"])
    return answer["read"], answer["state"]


class RefusedError(Exception):
    """A loader refused a state."""


LOADERS: dict[str, Callable[[Path, list[Phase]], Read]] = {
    "this": ours,
    "MosaicML StreamingDataset": mosaicml,
    "grain MapDataset": grain,
    "Megatron BlendedDataset": megatron,
}


def write(folder: Path) -> None:
    """Write the sources as MDS and as pairs; every token of a sample is the sample's number."""
    for name, first, counts in (("a", 0, (FIRST,)), ("b", FIRST, (SECOND, SECOND + MORE))):
        for count in counts:
            rows = np.repeat(np.arange(first, first + count, dtype=np.int32)[:, None], LENGTH, axis=1)
            write_windows(folder / f"mds-{name}-{count}", rows, 1 << 14)
            build_pair(folder / f"pair-{name}-{count}", [*rows.astype(np.uint16)], "uint16")


def twice(read: list[int], sizes: tuple[int, int]) -> int:
    """Return the number of samples repeated in the first pass of their source, which equals the number omitted."""
    numbers, total = np.array(read), 0
    for source, size in enumerate(sizes):
        first = numbers[(numbers >= FIRST) == source][:size]
        total += len(first) - len(np.unique(first))
    return total


def _steps(read: list[int], batch: int) -> list[list[int]]:
    return [sorted(read[at : at + batch]) for at in range(0, len(read), batch)]


def tried(loader: Callable[[Path, list[Phase]], Read], folder: Path) -> dict[str, str]:
    """Return the results of one loader on the sources of a folder, by change."""

    def run(*phases: Phase) -> Read:
        return loader(folder, list(phases))

    def again_of(*phases: Phase) -> str:
        """Return the number of repeated samples in a run of these phases, or the error."""
        try:
            return f"{twice(run(*phases)[0], phases[-1].sizes)} twice"
        except RefusedError as refused:
            return f"refused: {refused}"

    def same_steps(*phases: Phase) -> str:
        try:
            return "the same steps" if _steps(run(*phases)[0], 8) == _steps(whole, 8) else "others"
        except RefusedError as refused:
            return f"refused: {refused}"

    begun = Phase(samples=STOP)
    whole, _ = run(Phase(samples=2 * STOP))
    _, state = run(begun, begun)
    long = replace(begun, samples=LONG)
    batch, mixture, grown = replace(long, batch=16), replace(long, weights=(1, 1)), replace(long, grown=True)
    return {
        "state": f"{state} bytes",
        "as it was": same_steps(begun, begun),
        "two ranks": same_steps(begun, replace(begun, ranks=2)),
        "without a change": again_of(replace(begun, samples=STOP + LONG)),
        "another batch": again_of(begun, batch),
        "another mixture": again_of(begun, mixture),
        "400 samples more": again_of(begun, grown),
    }


def main() -> None:
    """Print a row for each loader."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--energon", metavar="PYTHON", help="a Python in whose environment megatron-energon is")
    parser.add_argument("--only", action="append", help="of which loader; default: all", choices=[*LOADERS, "Energon"])
    asked = parser.parse_args()
    loaders = dict(LOADERS)
    if asked.energon is not None:
        loaders["Energon"] = partial(energon, asked.energon)
    if asked.only is not None:
        loaders = {name: loader for name, loader in loaders.items() if name in asked.only}
    with tempfile.TemporaryDirectory(prefix="bench-resumption-") as folder:
        write(Path(folder))
        for number, (name, loader) in enumerate(loaders.items()):
            row = tried(loader, Path(folder))
            if not number:
                print("| loader | " + " | ".join(row) + " |\n|---" + "|---" * len(row) + "|")
            print(f"| {name} | " + " | ".join(row.values()) + " |", flush=True)


if __name__ == "__main__":
    # Import the module by its real name, because loader processes import the classes of the phases by this name.
    from dataprep_assets_tests.tools.bench.resumption import main as command

    command()
