"""`dataprep status` and `run --dry-run`: show the artifacts that a run would build, the reasons and the costs."""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import AsJson, Names
from dataprep_assets.errors import count_of

if TYPE_CHECKING:
    from dataprep_assets.engine.artifact.dataset import Dataset
    from dataprep_assets.engine.staleness.rebuild import Rebuild, RemainingRetractions
    from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore


def command(datasets: Names, json_: AsJson = False) -> int:
    """Show which artifacts are missing, damaged or out of date, the reasons, and the cost of a rebuild.

    Exits with 0 if everything is up to date, else with 1.
    """
    return max(print_rebuild(name, as_json=json_) for name in datasets)


def print_rebuild(name: str, *, as_json: bool, until: str | None = None) -> int:
    """Print the artifacts that a run would build, as text or one line of JSON; return 0 if there are none, else 1.

    Writes nothing. With `until`, only this artifact and the artifacts that it is built from are printed.
    """
    from dataprep_assets.engine.staleness.status import find_retracted_leftovers, find_unplanned_artifacts

    dataset = project.open_dataset(name)
    component, store, rebuild = dataset.component, dataset.store, dataset.status(until=until)
    obsolete, retracted_artifacts = list[tuple[str, str]](), list["Artifact"]()
    # Only a run of the whole dataset removes obsolete artifacts.
    if until is None:
        obsolete += [
            (str(artifact), store.location(artifact)) for artifact in find_unplanned_artifacts(component.specs, store)
        ]
        retracted_artifacts += find_retracted_leftovers(component.specs, store)
    if as_json:
        print(json.dumps(to_json(component, store, rebuild, obsolete, retracted_artifacts)))
    else:
        _print_rebuild(component, store, rebuild, obsolete, retracted_artifacts, until)
    return 1 if rebuild.works or rebuild.due or retracted_artifacts else 0


def describe_leftover(dataset: str, artifact: "Artifact", store: "ArtifactStore") -> str:
    """Return the line about an obsolete artifact that holds, or may hold, retracted documents."""
    return (
        f"obsolete, and may contain retracted documents: {store.location(artifact)}. Run `dataprep run {dataset}` to "
        "remove it"
    )


def _print_rebuild(
    component: "Dataset",
    store: "ArtifactStore",
    rebuild: "Rebuild",
    leftovers: Sequence[tuple[str, str]],
    retracted_artifacts: "Sequence[Artifact]",
    until: str | None,
) -> None:
    from dataprep_assets.cli.support.rebuild_table import rebuild_lines
    from dataprep_assets.engine.artifact.summary import describe_unread_files

    name = component.declaration.dataset
    if not rebuild.works and not rebuild.due:
        everything = "everything" if until is None else f"everything up to {until}"
        print(f"{name}: " + ("nothing to build" if retracted_artifacts else f"{everything} is up to date"))
        project.print_unless_private(describe_unread_files(component, store), f"{name}: some source files are not read")
    else:
        checks = f"nothing to build, {count_of(len(rebuild.due), 'artifact')} to check"
        builds = f"{count_of(len(rebuild.works), 'artifact')} to build"
        print(f"{name}: {builds if rebuild.works else checks}")
        print()
        for line in rebuild_lines(rebuild, project.get_privacy()):
            print(line)
        for downstream in _find_affected_artifacts(component, rebuild):
            print(f"downstream: {downstream['dataset']}/{downstream['artifact']}, built from {downstream['through']}")
    project.print_unless_private(component.describe_state(store), f"{name}: more details")
    for leftover in _find_still_held(component, store):
        shards = count_of(leftover.partitions, leftover.noun)
        print(
            f"{leftover.dataset}/{leftover.artifact} ({shards}) still contains documents that were retracted from "
            f"{leftover.retracted_by}. Retract them from {leftover.dataset} as well"
        )
    for artifact, location in leftovers:
        print(f"obsolete: {artifact}: {location}. Remove it with `dataprep prune {name} --yes`")
    for unread in retracted_artifacts:
        print(describe_leftover(name, unread, store))


def to_json(
    component: "Dataset",
    store: "ArtifactStore",
    rebuild: "Rebuild",
    leftovers: Sequence[tuple[str, str]],
    retracted_artifacts: "Sequence[Artifact]",
) -> dict[str, Any]:
    """Return the JSON object: the keys of `Rebuild.to_json`, and these keys.

    Keys:
        dataset: Name of the dataset.
        reaches: The artifacts of other datasets that depend on a rebuilt artifact.
        standing: Lines about a schedule's pending changes, or a task folder's lines for the trainer, such as `TASK=`.
        still_held: The artifacts that may still contain documents that were removed from another dataset with the same
            source files.
        in_no_plan: All obsolete artifacts.
        in_no_plan[].artifact: The artifact.
        in_no_plan[].location: Its location.
        retracted_in_no_plan: The obsolete artifacts that may contain removed documents.
        retracted_in_no_plan[].artifact: The artifact.
        retracted_in_no_plan[].location: Its location.
    """
    return {
        "dataset": component.declaration.dataset,
        **rebuild.to_json(),
        "reaches": _find_affected_artifacts(component, rebuild),
        "standing": [project.get_privacy().public_text(line, "not shown") for line in component.describe_state(store)],
        "still_held": [vars(leftover) for leftover in _find_still_held(component, store)],
        "in_no_plan": [{"artifact": artifact, "location": location} for artifact, location in leftovers],
        "retracted_in_no_plan": [
            {"artifact": str(artifact), "location": store.location(artifact)} for artifact in retracted_artifacts
        ],
    }


def _find_affected_artifacts(component: "Dataset", rebuild: "Rebuild") -> list[dict[str, str]]:
    """Return the artifacts of other declared datasets that depend on artifacts that a run would build."""
    from dataprep_assets.engine.staleness.downstream import find_affected_artifacts

    names = {work.stale.spec.name for work in rebuild.works if work.stale.spec is not None}
    if not names:
        return []
    dataset = component.declaration.dataset
    specs_by_dataset = {
        dependent_dataset.declaration.dataset: dependent_dataset.specs
        for dependent_dataset in project.find_datasets_naming(dataset)
    }
    return [vars(downstream) for downstream in find_affected_artifacts(dataset, names, specs_by_dataset)]


def _find_still_held(component: "Dataset", store: "ArtifactStore") -> "Iterator[RemainingRetractions]":
    """Yield partitions of other datasets with documents that this dataset retracted, and of this dataset with theirs.

    All other datasets are loaded only if this dataset dropped any document as retracted. Otherwise only datasets with a
    retraction list are loaded.
    """
    from dataprep_assets.engine.staleness.rebuild import count_retracted_documents, find_remaining_retractions

    dataset = component.declaration.dataset
    retracted_counts = count_retracted_documents(component.specs, store) if project.may_retract(dataset) else {}
    other_datasets = project.load_others(dataset) if retracted_counts else project.find_datasets_retracting(dataset)
    dataset_artifacts = {
        other_dataset.declaration.dataset: (other_dataset.specs, other_dataset.store(project.open_storage()))
        for other_dataset in other_datasets
    }
    yield from find_remaining_retractions(dataset, retracted_counts, dataset_artifacts.values())
    for name, (specs, other_store) in dataset_artifacts.items():
        yield from find_remaining_retractions(
            name, count_retracted_documents(specs, other_store), [(component.specs, store)]
        )
