"""The states of a dataset's partitions, as compact grids: one cell per partition.

Artifacts with the same partitions share a grid. A cell shows the worst state of its partition in any of them.

Entry point: `describe_grids`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dataprep_assets.engine.artifact.spec import ArtifactSpec, Partitions
from dataprep_assets.engine.privacy import Privacy
from dataprep_assets.engine.staleness.decide import CHECK_FAILED, MISSING, Action, Decision

MAX_CELLS = 2_000
"""Maximum number of cells of a grid; a longer one would be slow to load and too fine to read."""
_MAX_LISTED = 50
"""Maximum number of partitions that are listed with their reasons."""
STATES = {
    "built": ("built", "good"),
    "unchecked": ("not checked", "todo"),
    "stale": ("out of date", "warn"),
    "missing": ("missing", "idle"),
    "failed": ("failed check", "bad"),
}
"""State of a partition, best first → words, and the class of its cell."""
_FINISHED_STATES = ("built", "unchecked")
"""States of partitions whose files are up to date."""
_RANKS = {state: rank for rank, state in enumerate(STATES)}


@dataclass(frozen=True)
class Cell:
    """A partition: its key, its class, and the states of its artifacts in words."""

    partition: str
    style: str
    title: str


@dataclass(frozen=True, kw_only=True)
class PartitionGrid:
    """The partitions that some artifacts share.

    Attributes:
        title: Names of the artifacts.
        noun: Plural noun for the partitions.
        number: Number of the partitions with their noun, in its public form.
        counts: Artifact → number of its partitions in each state, in the order of `STATES`, in their public form.
        cells: The partitions in order; empty if there are more than `MAX_CELLS`.
        pending: The first partitions whose files must be built: partition, artifact, state, reason.
        unlisted: Number of further such partitions.
    """

    title: str
    noun: str
    number: str
    counts: Mapping[str, tuple[str, ...]]
    cells: tuple[Cell, ...]
    pending: tuple[tuple[str, str, str, str], ...]
    unlisted: int = 0


def describe_grids(
    specs: Sequence[ArtifactSpec], decisions: Sequence[Decision], privacy: Privacy
) -> list[PartitionGrid]:
    """Return the grids of a dataset, from the decisions on its partitions (`staleness.status.decide_dataset`)."""
    groups: dict[Partitions, list[ArtifactSpec]] = {}
    for spec in specs:
        if spec.partitions is not None and spec.kept:
            groups.setdefault(spec.partitions, []).append(spec)
    by_spec: dict[ArtifactSpec, dict[str, Decision]] = {}
    for decision in decisions:
        if decision.spec is not None and decision.partition is not None:
            by_spec.setdefault(decision.spec, {})[decision.partition] = decision
    grids = (_describe_grid(members, by_spec, privacy) for members in groups.values())
    return [grid for grid in grids if grid is not None]


def _describe_grid(
    members: Sequence[ArtifactSpec], by_spec: Mapping[ArtifactSpec, Mapping[str, Decision]], privacy: Privacy
) -> PartitionGrid | None:
    # The partitions of an artifact that is not planned yet are unknown.
    keys = list(dict.fromkeys(key for spec in members for key in by_spec.get(spec, {})))
    if not keys:
        return None
    states = {spec: {key: _name_state(decision) for key, decision in by_spec.get(spec, {}).items()} for spec in members}
    unbuilt = [
        (key, decision.asset, STATES[states[spec][key]][0], "" if privacy.closed else decision.reason)
        for key in keys
        for spec in members
        if (decision := by_spec.get(spec, {}).get(key)) is not None and states[spec][key] not in _FINISHED_STATES
    ]
    noun = members[0].noun
    return PartitionGrid(
        title=", ".join("/".join(spec.path[1:]) for spec in members),
        noun=f"{noun}s",
        number=f"{privacy.public_count(len(keys))} {noun if len(keys) == 1 and not privacy.closed else f'{noun}s'}",
        counts={
            "/".join(spec.path[1:]): tuple(_count_states(list(states[spec].values()), privacy)) for spec in members
        },
        cells=tuple(_build_cells(keys, states)) if len(keys) <= MAX_CELLS else (),
        pending=tuple(unbuilt[:_MAX_LISTED]),
        unlisted=max(0, len(unbuilt) - _MAX_LISTED),
    )


def _name_state(decision: Decision) -> str:
    if decision.kind == CHECK_FAILED:
        return "failed"
    if decision.action is Action.BUILD:
        return "missing" if decision.kind == MISSING else "stale"
    return "unchecked" if decision.action is Action.CHECK else "built"


def _count_states(states: Sequence[str], privacy: Privacy) -> Iterator[str]:
    counts = Counter(states)
    yield from (privacy.public_count(counts[state]) for state in STATES)


def _build_cells(keys: Sequence[str], states: Mapping[ArtifactSpec, Mapping[str, str]]) -> Iterator[Cell]:
    for key in keys:
        states_of_key = {spec: by_key[key] for spec, by_key in states.items() if key in by_key}
        worst = max(states_of_key.values(), key=_RANKS.__getitem__)
        unbuilt_states = [
            f"{'/'.join(spec.path[1:])} {STATES[state][0]}" for spec, state in states_of_key.items() if state != "built"
        ]
        yield Cell(key, STATES[worst][1], f"{key}: {', '.join(unbuilt_states) or worst}")
