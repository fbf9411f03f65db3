"""The drill itself: builds the datasets of a pipeline, applies every fault alone, and notes who noticed it."""

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
    """One fault that was applied: where, and who noticed it (`verify`, `proof`, `run`, or nobody)."""

    pipeline: str
    kind: str
    name: str
    target: str
    place: int
    where: str
    notice: Notice

    @property
    def by(self) -> str:
        """Who noticed it first, in the order in which a person would hear of it without a run."""
        return next((who for who in ("verify", "proof", "run") if getattr(self.notice, who)), "")

    def to_json(self) -> dict[str, Any]:
        """The same for a file."""
        return {**asdict(self), "by": self.by}


def prepare(pipeline: str, home: Path, *, aside: bool = True) -> tuple[Box, Callable[[int], Iterator[Fault]]]:
    """Build a pipeline's datasets, prove that nothing is wrong with them, and return them with their table of faults.

    Args:
        pipeline: Which.
        home: An empty folder.
        aside: Build the older run, the other dataset and the wrong settings as well.

    The second value gives every fault at so many places each.
    """
    folder = home / pipeline
    others = build_aside(pipeline, folder, home / "aside") if aside else None
    made = bench(pipeline, folder)
    if said := alarms(made.specs, made.store):
        raise AssertionError(f"the datasets of {pipeline} are not clean: {said}")
    box = Box(made, others.editions if others else {})
    return box, lambda places: faults_of(box, places, others.variants if others else {})


def faults_of(box: Box, places: int, variants: dict[str, Path] | Any) -> Iterator[Fault]:
    """Every fault of a box."""
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
    """Apply each fault alone, and yield what was said of it; faults that would change nothing here are left out.

    Args:
        box: What is damaged.
        faults: In any order.
        seed: Of their places.
        status: Ask `status` as well.
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
