"""`dataprep status` and `run --dry-run`: show the artifacts that a run would build, the reasons and the costs."""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import AsJson, Names
from dataprep_assets.errors import count_of

if TYPE_CHECKING:
    from dataprep_assets.engine.artifact.dataset import Dataset
    from dataprep_assets.engine.staleness.rebuild import Rebuild, StillHeld
    from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore


def command(datasets: Names, json_: AsJson = False) -> int:
    """Show what is missing, damaged or out of date, why, and what a rebuild costs.

    Exits with 0 if everything is up to date, else 1.
    """
    return max(tell(name, as_json=json_) for name in datasets)


def tell(name: str, *, as_json: bool) -> int:
    """Print the artifacts that a run would build, as text or one line of JSON; return 0 if there are none, else 1.

    Writes nothing.
    """
    from dataprep_assets.engine.staleness.status import retracted_left, unplanned

    dataset = project.open_dataset(name)
    component, store, rebuild = dataset.component, dataset.store, dataset.status()
    obsolete = [(str(artifact), store.location(artifact)) for artifact in unplanned(component.specs, store)]
    retracted = retracted_left(component.specs, store)
    if as_json:
        leftovers = [{"artifact": str(artifact), "location": store.location(artifact)} for artifact in retracted]
        print(json.dumps(_as_json(component, store, rebuild, obsolete) | {"retracted_in_no_plan": leftovers}))
    else:
        _print(component, store, rebuild, obsolete, retracted)
    return 1 if rebuild.works or rebuild.due or retracted else 0


def left_line(dataset: str, artifact: "Artifact", store: "ArtifactStore") -> str:
    """Return the line about an obsolete artifact that holds, or may hold, retracted documents."""
    return (
        f"no longer needed, and may hold retracted documents: {store.location(artifact)} (the next `dataprep run "
        f"{dataset}` removes it)"
    )


def _print(
    component: "Dataset",
    store: "ArtifactStore",
    rebuild: "Rebuild",
    left: Sequence[tuple[str, str]],
    retracted: "Sequence[Artifact]",
) -> None:
    from dataprep_assets.cli.support.rebuild_table import rebuild_lines

    name = component.declaration.dataset
    if not rebuild.works and not rebuild.due:
        print(f"{name}: " + ("nothing to build" if retracted else "everything is up to date"))
    else:
        checks = f"nothing to build, {count_of(len(rebuild.due), 'artifact')} to check"
        print(f"{name}: {len(rebuild.works)} to build" if rebuild.works else f"{name}: {checks}")
        print()
        for line in rebuild_lines(rebuild, project.privacy()):
            print(line)
        for downstream in _affected_artifacts(component, rebuild):
            print(f"downstream: {downstream['dataset']}/{downstream['artifact']}, built from {downstream['through']}")
    project.tell(component.standing_lines(store), f"{name}: the previous run remains valid")
    for leftover in _find_still_held(component, store):
        shards = count_of(leftover.partitions, leftover.noun)
        print(
            f"still holds retracted documents: {leftover.dataset}/{leftover.artifact}, {shards} of source files from "
            f"which {leftover.retracted_by} drops them. Retract them there as well (for a blend: remove them "
            "from its files)"
        )
    for artifact, location in left:
        print(f"no longer needed: {artifact}: {location} (`dataprep prune {name}` removes it)")
    for unread in retracted:
        print(left_line(name, unread, store))


def _as_json(
    component: "Dataset", store: "ArtifactStore", rebuild: "Rebuild", left: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    return {
        "dataset": component.declaration.dataset,
        **rebuild.to_json(),
        "reaches": _affected_artifacts(component, rebuild),
        "standing": [project.privacy().text(line, "not shown") for line in component.standing_lines(store)],
        "still_held": [vars(leftover) for leftover in _find_still_held(component, store)],
        "in_no_plan": [{"artifact": artifact, "location": location} for artifact, location in left],
    }


def _affected_artifacts(component: "Dataset", rebuild: "Rebuild") -> list[dict[str, str]]:
    """Return the artifacts of other declared datasets that depend on artifacts that a run would build."""
    from dataprep_assets.engine.staleness.downstream import reached

    names = {work.stale.spec.name for work in rebuild.works if work.stale.spec is not None}
    if not names:
        return []
    dataset = component.declaration.dataset
    specs_by_dataset = {
        dependent_dataset.declaration.dataset: dependent_dataset.specs
        for dependent_dataset in project.datasets_naming(dataset)
    }
    return [vars(downstream) for downstream in reached(dataset, names, specs_by_dataset)]


def _find_still_held(component: "Dataset", store: "ArtifactStore") -> "Iterator[StillHeld]":
    """Yield partitions of other datasets that hold documents retracted by this dataset, and the reverse.

    All other datasets are loaded only if this dataset dropped any document as retracted. Otherwise only datasets with a
    retraction list are loaded.
    """
    from dataprep_assets.engine.staleness.rebuild import retracted_of, still_held

    dataset = component.declaration.dataset
    ours = retracted_of(component.specs, store) if project.may_retract(dataset) else {}
    other_datasets = project.load_others(dataset) if ours else project.datasets_retracting(dataset)
    dataset_artifacts = {
        other_dataset.declaration.dataset: (other_dataset.specs, other_dataset.store(project.storage()))
        for other_dataset in other_datasets
    }
    yield from still_held(dataset, ours, dataset_artifacts.values())
    for name, (specs, other_store) in dataset_artifacts.items():
        yield from still_held(name, retracted_of(specs, other_store), [(component.specs, store)])
