"""`dataprep status`: what of a dataset has to be built again, and why."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dataprep_assets.cli import project

if TYPE_CHECKING:
    from dataprep_assets.graph.spec import ArtifactSpec

__all__ = ["declare"]


def declare(commands: project.Commands) -> None:
    """Add the command's arguments."""
    parser = commands.add_parser("status", help="say what of a dataset is missing, damaged or out of date, and why")
    parser.add_argument("dataset", nargs="+")
    parser.set_defaults(execute=lambda options: max(_status(name) for name in options.dataset))


def _status(name: str) -> int:
    from dataprep_assets.graph.status import stale, unplanned

    component = project.component(name)
    store = component.store(project.storage())
    behind = 0
    for one in stale(component.specs, store, _failed_checks(component.specs)):
        behind += 1
        print(f"stale: {one}")
    for artifact in unplanned(component.specs, store):
        print(f"in no plan any more: {artifact}: {store.location(artifact)}")
    if not behind:
        print(f"{name}: all is up to date")
    return 1 if behind else 0


def _failed_checks(specs: "Sequence[ArtifactSpec]") -> Mapping[tuple[str, ...], Sequence[str]]:
    """The blocking checks that failed last, where there is an instance that knows."""
    from dataprep_assets.orchestration.runs import failed_checks

    if not (project.instance_home() / "dagster.yaml").exists():
        return {}
    with project.instance() as instance:
        return failed_checks(specs, instance)
