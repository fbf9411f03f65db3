"""`dataprep show`: show a dataset's artifacts and locations, and the code to load them in a trainer."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import AsJson, Name
from dataprep_assets.errors import ConfigError, DataprepError, count_of
from dataprep_assets.screen import read_width
from dataprep_assets.table import align_rows

if TYPE_CHECKING:
    from dataprep_assets.engine.artifact.spec import ArtifactSpec
    from dataprep_assets.integrity.artifacts import ArtifactStore
    from dataprep_assets.library.dataset import OpenDataset


@dataclass(frozen=True, kw_only=True)
class _ArtifactRow:
    """Row of the table, for one artifact.

    Attributes:
        artifact: The artifact's name.
        product: Whether it is a product of the dataset.
        noun: The noun for its partitions; None if it has none.
        location: Location of the artifact or its first partition.
        there: Number of current partitions (0 or 1 for an unpartitioned artifact).
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
        bool,
        typer.Option("--private", help="Also print the details of a sensitive dataset that all other outputs omit."),
    ] = False,
    json_: AsJson = False,
) -> int:
    """Show a dataset's artifacts, their paths, and how to load them in a trainer."""
    from dataprep_assets.engine.artifact.summary import format_summary, list_check_outcomes
    from dataprep_assets.engine.staleness.status import is_never_built

    if private and json_:
        raise ConfigError("--private cannot be combined with --json. Remove one of them")
    open_dataset = project.open_dataset(dataset)
    component, store = open_dataset.component, open_dataset.store
    if private:
        _print_private(open_dataset)
        return 0
    artifacts = list(_list_artifacts(component.specs, store))
    if json_:
        print(json.dumps(_to_json(open_dataset, artifacts), ensure_ascii=False))
        return 0
    print(f"{dataset}: {component.component}, declared in {project.find_declaration(dataset)}")
    if component.declaration.description:
        print(component.declaration.description)
    print()
    for line in _format_table(artifacts):
        print(line)
    if is_never_built(component.specs, store):
        print(f"\nnever run. Run `dataprep run {dataset}` to build it, or add --dry-run to preview the build")
        return 0
    try:
        print(format_summary(component, store, read_width(sys.stdout)))
        # Warn that the numbers may contradict each other, because artifacts downstream of a check that failed or did
        # not run may be from an earlier run.
        if any(check["outcome"] in ("failed", "not_run") for check in list_check_outcomes(component, store)):
            print(
                f"\nnot finished: some artifacts may be from an earlier run. Run `dataprep status {dataset}` to list "
                "them"
            )
        print(project.describe_browser_command())
    except DataprepError as error:
        print(f"\nnot finished: {project.get_privacy().public_error(error)}")
        print(
            f"Run `dataprep status {dataset}` to list the artifacts to build. Run `dataprep run {dataset}` to build "
            "them"
        )
    return 0


def _print_private(dataset: "OpenDataset") -> None:
    """Print the full state of a dataset, then the details that its outputs omitted, oldest first."""
    from dataprep_assets.engine.artifact.summary import list_private_details
    from dataprep_assets.engine.privacy import find_private_file

    print("\n".join(list_private_details(dataset.component, dataset.store)))
    file = find_private_file(dataset.name, dataset.store)
    for path in (file.with_suffix(".old"), file):
        if path.is_file():
            print(path.read_text(encoding="utf-8"), end="")


def _list_artifacts(specs: "Sequence[ArtifactSpec]", store: "ArtifactStore") -> Iterator[_ArtifactRow]:
    from dataprep_assets.engine.card.products import find_products

    made_for = find_products(specs)
    for spec in specs:
        if not spec.kept:
            continue
        row = _ArtifactRow(
            artifact="/".join(spec.path[1:]),
            product=spec in made_for,
            noun=None if spec.partitions is None else spec.partitions.noun,
        )
        # Leave the location and numbers of an unplanned artifact unset, because they are not known yet.
        with suppress(DataprepError):
            artifacts = spec.artifacts(store)
            count = sum(receipt is not None for receipt in store.receipts(artifacts))
            location = store.location(artifacts[0]) if artifacts else None
            row = replace(row, location=location, there=count, planned=len(artifacts))
        yield row


def _to_json(dataset: "OpenDataset", rows: Sequence[_ArtifactRow]) -> dict[str, Any]:
    from dataprep_assets.engine.artifact.summary import build_loss_table, list_check_outcomes

    component = dataset.component
    try:
        # Omit the summary if the data is private, because it contains counts.
        lines = [*component.summary(dataset.store), *component.describe_trainers(dataset.store)]
        summary = None if project.get_privacy().closed else [line for line in lines if line]
    except DataprepError:  # an unfinished dataset has no summary
        summary = None
    return {
        "dataset": dataset.name,
        "component": component.component,
        "declaration": str(project.find_declaration(dataset.name)),
        "description": component.declaration.description,
        "artifacts": [asdict(artifact) for artifact in rows],
        "summary": summary,
        "losses": build_loss_table(component, dataset.store).to_json(),
        "checks": list_check_outcomes(component, dataset.store),
    }


def _format_table(artifact_rows: Sequence[_ArtifactRow]) -> Iterator[str]:
    """Yield a line per artifact: a mark for products, the number of current partitions and the first location.

    Locations are below the folder of the dataset, which has a line of its own, because the table is too wide otherwise.
    """
    locations = [artifact.location for artifact in artifact_rows if artifact.location is not None]
    # Compare the locations as text, because some are URLs, which `os.path` functions would change.
    lowest, highest = min(locations, default=""), max(locations, default="")
    prefix_length = next((i for i, (a, b) in enumerate(zip(lowest, highest, strict=False)) if a != b), 0)
    folder = lowest[: lowest.rfind("/", 0, prefix_length) + 1]
    if folder:
        yield f"in {folder}"
    rows = [
        (
            f"{'*' if artifact.product else ' '} {artifact.artifact}",
            _describe_presence(artifact),
            _format_location(artifact).removeprefix(folder),
        )
        for artifact in artifact_rows
    ]
    yield from align_rows([("  artifact", "built", "location"), *rows], right=[1])
    yield "* product of the dataset"


def _describe_presence(row: _ArtifactRow) -> str:
    if row.planned is None:
        return "not planned"
    if row.noun is None:
        return "yes" if row.there else "no"
    return f"{row.there:,} of {count_of(row.planned, row.noun)}"


def _format_location(row: _ArtifactRow) -> str:
    return f"{row.location or ''}{' …' if row.planned is not None and row.planned > 1 else ''}"
