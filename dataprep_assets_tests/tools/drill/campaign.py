"""Run the drill: build the datasets of a pipeline, apply every fault by itself, and record what detected it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dataprep_assets_tests.tools.drill.box import Box
from dataprep_assets_tests.tools.drill.bytes_of_files import file_faults
from dataprep_assets_tests.tools.drill.claims import claim_faults
from dataprep_assets_tests.tools.drill.datasets import bench
from dataprep_assets_tests.tools.drill.faults import Fault, InapplicableError
from dataprep_assets_tests.tools.drill.judge import Notice, alarms, notice
from dataprep_assets_tests.tools.drill.memory import memory_faults
from dataprep_assets_tests.tools.drill.network import network_faults
from dataprep_assets_tests.tools.drill.rows import row_faults
from dataprep_assets_tests.tools.drill.running import running_faults
from dataprep_assets_tests.tools.drill.settings import build_aside, setting_faults
from dataprep_assets_tests.tools.drill.special import special_faults


@dataclass(frozen=True, kw_only=True)
class Result:
    """An applied fault: its place, and what detected it (`verify`, `proof`, `run`, or nothing)."""

    pipeline: str
    kind: str
    name: str
    target: str
    place: int
    where: str
    notice: Notice

    @property
    def by(self) -> str:
        """The first detection, in the order in which a user would learn of it without a run."""
        return next((who for who in ("verify", "proof", "run") if getattr(self.notice, who)), "")

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON for a file."""
        return {**asdict(self), "by": self.by}


def prepare(pipeline: str, home: Path, *, aside: bool = True) -> tuple[Box, Callable[[int], Iterator[Fault]]]:
    """Build a pipeline's datasets, verify that they are intact, and return them with their table of faults.

    Args:
        pipeline: The name of the pipeline.
        home: An empty folder.
        aside: Also build the older run, the other dataset and the wrong settings.

    The second value returns every fault at this many places each.
    """
    folder = home / pipeline
    others = build_aside(pipeline, folder, home / "aside") if aside else None
    made = bench(pipeline, folder)
    if said := alarms(made.specs, made.store):
        raise AssertionError(f"the datasets of {pipeline} are not clean: {said}")
    box = Box(made, others.editions if others else {})
    return box, lambda places: faults_of(box, places, others.variants if others else {})


def faults_of(box: Box, places: int, variants: dict[str, Path] | Any) -> Iterator[Fault]:
    """Return every fault of a box."""
    for table in (file_faults, row_faults, special_faults, memory_faults, running_faults, network_faults, claim_faults):
        yield from table(box, places)
    yield from setting_faults(box, variants)


def run(
    box: Box,
    faults: Sequence[Fault],
    seed: int,
    *,
    status: bool = False,
    told: Callable[[Result], None] = lambda _: None,
) -> Iterator[Result]:
    """Apply each fault by itself, and yield its result; skip faults that would change nothing here.

    Args:
        box: The box to damage.
        faults: The faults, in any order.
        seed: The seed of their places.
        status: Also run `status`.
        told: Called with each result.
    """
    for fault in faults:
        random, where = fault.random(seed), ""
        try:
            if fault.happens is not None:
                noticed = fault.happens(box, fault.target, random)
            else:
                where = fault.apply(box, fault.target, random) or ""
                noticed = notice(box, fault.target, fault.examined, status=status)
        except InapplicableError:
            continue
        finally:
            box.restore()
        result = Result(
            pipeline=box.bench.pipeline,
            kind=fault.kind,
            name=fault.name,
            target=str(fault.target),
            place=fault.place,
            where=where,
            notice=noticed,
        )
        told(result)
        yield result
    if not box.unharmed:
        raise AssertionError("a fault reached the originals")
