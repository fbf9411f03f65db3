"""`dataprep show`: show a dataset's artifacts and locations, and the code to load them in a trainer."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import AsJson, Name
from dataprep_assets.errors import ConfigError, DataprepError, count_of
from dataprep_assets.table import align_rows

if TYPE_CHECKING:
    from dataprep_assets.engine.artifact.spec import ArtifactSpec
    from dataprep_assets.integrity.artifacts import ArtifactStore
    from dataprep_assets.library.dataset import OpenDataset


@dataclass(frozen=True, kw_only=True)
class _Made:
    """An artifact of the table.

    Attributes:
        artifact: The artifact's name.
        product: Whether it is a product of the dataset.
        noun: The noun for its partitions; None if it has none.
        location: Location of the artifact or its first partition.
        there: Number of present partitions (0 or 1 for an unpartitioned artifact).
        planned: Number of all partitions (1 for an unpartitioned artifact); None if not planned yet.
    """

    artifact: str
    product: bool
    noun: str | None
    location: str | None = None
    there: int = 0
    planned: int | None = None


def command(
    dataset: Name,
    private: Annotated[
        bool, typer.Option("--private", help="Print the details that other outputs of a sensitive dataset omit.")
    ] = False,
    json_: AsJson = False,
) -> int:
    """Show a dataset's artifacts, their paths, and how to load them in a trainer. Reads no data; see `verify`."""
    from dataprep_assets.engine.artifact.summary import loss_table, summary
    from dataprep_assets.engine.staleness.status import never_built

    if private and json_:
        raise ConfigError("--private: cannot be combined with --json. Remove one of them")
    open_dataset = project.open_dataset(dataset)
    component, store = open_dataset.component, open_dataset.store
    if private:
        _print_private(open_dataset)
        return 0
    artifacts = list(_list_artifacts(component.specs, store))
    if json_:
        print(json.dumps(_as_json(open_dataset, artifacts), ensure_ascii=False))
        return 0
    print(f"{dataset}: {component.component}, declared in {project.declaration_of(dataset)}")
    if component.declaration.description:
        print(component.declaration.description)
    print()
    for line in _table(artifacts):
        print(line)
    if never_built(component.specs, store):
        print(f"\nnever run. Run `dataprep run {dataset}` to build it, or add --dry-run to preview the build")
        return 0
    try:
        print(summary(component, store, losses=list(loss_table(component, store).lines())))
        print(project.browser_line())
    except DataprepError as error:
        print(f"\nnot finished: {project.privacy().error(error)}")
        print(f"Run `dataprep status {dataset}` to list the missing artifacts, `dataprep run {dataset}` to build them")
    return 0


def _print_private(opened: "OpenDataset") -> None:
    """Print the full state of a dataset, then the details that its outputs omitted, oldest first."""
    from dataprep_assets.engine.artifact.summary import private_lines
    from dataprep_assets.engine.privacy import private_file

    print("\n".join(private_lines(opened.component, opened.store)))
    file = private_file(opened.name, opened.store)
    for path in (file.with_suffix(".old"), file):
        if path.is_file():
            print(path.read_text(encoding="utf-8"), end="")


def _list_artifacts(specs: "Sequence[ArtifactSpec]", store: "ArtifactStore") -> Iterator[_Made]:
    from dataprep_assets.engine.card.products import products

    made_for = products(specs)
    for spec in specs:
        if not spec.kept:
            continue
        row = _Made(
            artifact="/".join(spec.path[1:]),
            product=spec in made_for,
            noun=None if spec.partitions is None else spec.partitions.noun,
        )
        # not planned yet: shown without location and numbers
        with suppress(DataprepError):
            artifacts = spec.artifacts(store)
            count = sum(receipt is not None for receipt in store.receipts(artifacts))
            location = store.location(artifacts[0]) if artifacts else None
            row = replace(row, location=location, there=count, planned=len(artifacts))
        yield row


def _as_json(opened: "OpenDataset", made: Sequence[_Made]) -> dict[str, Any]:
    from dataprep_assets.engine.artifact.summary import checks, loss_table

    component = opened.component
    try:
        # the lines contain counts
        lines = [*component.summary(opened.store), *component.trainer_lines(opened.store)]
        summary = None if project.privacy().closed else [line for line in lines if line]
    except DataprepError:  # not finished
        summary = None
    return {
        "dataset": opened.name,
        "component": component.component,
        "declaration": str(project.declaration_of(opened.name)),
        "description": component.declaration.description,
        "artifacts": [asdict(artifact) for artifact in made],
        "summary": summary,
        "losses": loss_table(component, opened.store).to_json(),
        "checks": checks(component, opened.store),
    }


def _table(made: Sequence[_Made]) -> Iterator[str]:
    """Yield a line per artifact: a mark for products, the number of present partitions and the first location."""
    rows = [
        (
            f"{'*' if artifact.product else ' '} {artifact.artifact}",
            _describe_presence(artifact),
            _location_text(artifact),
        )
        for artifact in made
    ]
    yield from align_rows([("  artifact", "there", "where"), *rows], right=[1])
    yield "* product of the dataset"


def _describe_presence(one: _Made) -> str:
    if one.planned is None:
        return "not planned"
    if one.noun is None:
        return "yes" if one.there else "no"
    return f"{one.there:,} of {count_of(one.planned, one.noun)}"


def _location_text(one: _Made) -> str:
    return f"{one.location or ''}{' …' if one.planned is not None and one.planned > 1 else ''}"
