"""`dataprep show`: what a dataset makes and where, and the lines for its trainer that a run also prints at its end."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dataprep_assets.cli import project
from dataprep_assets.cli.arguments import Name
from dataprep_assets.errors import DataprepError
from dataprep_assets.graph.shown import number_of

if TYPE_CHECKING:
    from dataprep_assets.graph.spec import ArtifactSpec
    from dataprep_assets.integrity.artifacts import ArtifactStore


def command(dataset: Name) -> int:
    """Say what a dataset makes and where, and how its trainer takes it. What was made is not read: `verify` does."""
    from dataprep_assets.graph.status import never_built
    from dataprep_assets.graph.summary import summary

    component = project.component(dataset)
    store = component.store(project.storage())
    print(f"{dataset}: {component.component}, declared in {project.declaration_of(dataset)}")
    if component.declaration.description:
        print(component.declaration.description)
    print()
    for line in _table(component.specs, store):
        print(line)
    if never_built(component.specs, store):
        print(f"\nnever run: `dataprep run {dataset}` makes it, with --dry-run it only says what that would do")
        return 0
    try:
        print(summary(component, store))
        print(project.in_the_browser())
    except DataprepError as error:
        print(f"\nnot finished: {error}")
        print(f"`dataprep status {dataset}` says what is left, `dataprep run {dataset}` makes it")
    return 0


def _table(specs: "Sequence[ArtifactSpec]", store: "ArtifactStore") -> Iterator[str]:
    """One line for each artifact, with products marked, how many partitions are there, and where the first one is."""
    from dataprep_assets.graph.products import products

    made_for, rows = products(specs), []
    for spec in specs:
        if spec.kept:
            place, there = _place(spec, store)
            rows.append(("/".join(spec.path[1:]), "*" if spec in made_for else "", there, place))
    widths = [max(len(row[at]) for row in [*rows, ("artifact", "", "there", "")]) for at in range(3)]
    yield f"  {'artifact':<{widths[0]}}  {'there':>{widths[2]}}  where"
    for name, mark, there, place in rows:
        yield f"{mark or ' '} {name:<{widths[0]}}  {there:>{widths[2]}}  {place}"
    yield "* what the dataset is made for"


def _place(spec: "ArtifactSpec", store: "ArtifactStore") -> tuple[str, str]:
    """Where an artifact is stored, and how much of it is there: `yes`, `no`, `2 of 3 shards`."""
    try:
        artifacts = [spec.located(store, slot) for slot in spec.slots(store)]
        there = sum(receipt is not None for receipt in store.receipts(artifacts))
    except DataprepError:
        return "", "not planned"
    if spec.partitions is None:
        return store.location(artifacts[0]), "yes" if there else "no"
    where = store.location(artifacts[0]) if artifacts else ""
    return where + (
        " …" if len(artifacts) > 1 else ""
    ), f"{there:,} of {number_of(len(artifacts), spec.partitions.noun)}"
