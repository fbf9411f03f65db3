"""A dataset with the store of its artifacts, from which its pages are computed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from dataprep_assets.engine.artifact.dataset import Dataset
from dataprep_assets.engine.artifact.spec import ArtifactSpec, DatasetInput
from dataprep_assets.engine.privacy import Privacy, load_privacy
from dataprep_assets.engine.staleness.decide import Decision
from dataprep_assets.engine.staleness.status import decide_dataset, is_never_built
from dataprep_assets.integrity.artifacts import ArtifactStore


@dataclass(frozen=True)
class StoredDataset:
    """A dataset with the store of its artifacts.

    It has the attributes of `library.OpenDataset` that pages need, without the project, because the asset `datasets`,
    which the code location loads, cannot import the library above it.

    Attributes:
        component: The dataset.
        store: The store of its artifacts.
        dependents: Names of the datasets of the site that are built from it.
    """

    component: Dataset
    store: ArtifactStore
    dependents: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the dataset."""
        return self.component.declaration.dataset

    @property
    def specs(self) -> Sequence[ArtifactSpec]:
        """Specs of the artifacts, inputs first."""
        return self.component.specs

    @property
    def upstream(self) -> tuple[str, ...]:
        """Names of the datasets that it is built from."""
        names = {source.dataset for spec in self.specs for source in spec.inputs if isinstance(source, DatasetInput)}
        return tuple(sorted(names - {self.name}))

    @cached_property
    def decisions(self) -> tuple[Decision, ...]:
        """Decision for each partition, with files compared by size; nothing if the dataset was never built.

        Raises DataprepError if the store or the source cannot be read.
        """
        if is_never_built(self.specs, self.store):
            return ()
        return tuple(decide_dataset(self.specs, self.store, verification="size"))

    @cached_property
    def privacy(self) -> Privacy:
        """Rules for the facts that may be shown; withheld texts go to the private file of the dataset."""
        return load_privacy(self.component.declaration, self.store)


def link_datasets(datasets: Iterable[StoredDataset]) -> list[StoredDataset]:
    """Return the datasets, sorted by name, with their dependents among them."""
    by_name = {dataset.name: dataset for dataset in datasets}
    dependents: dict[str, list[str]] = {}
    for name in sorted(by_name):
        for source in by_name[name].upstream:
            dependents.setdefault(source, []).append(name)
    return [replace(by_name[name], dependents=tuple(dependents.get(name, ()))) for name in sorted(by_name)]
