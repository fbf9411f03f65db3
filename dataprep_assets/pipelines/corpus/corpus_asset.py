"""What the assets of one tokenized corpus share.

`<dataset>/manifest → <dataset>/<split>/snapshot → <dataset>/<split>/token_bins → <dataset>/<split>/combined_bins →
<dataset>/<view>_bins`, in one group named after the dataset.
"""

from dataclasses import dataclass
from functools import cached_property

import dagster as dg

from dataprep_assets.orchestration.dataset import DatasetAssets
from dataprep_assets.orchestration.dynamic_partitions import register_in_order
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.manifest import Manifest, has_manifest, load_manifest
from resources import StorageResource


@dataclass(frozen=True)
class CorpusAssets(DatasetAssets):
    """A tokenized corpus: shards are dynamic partitions of each split, registered by the manifest."""

    declaration: CorpusDeclaration

    @property
    def corpus(self) -> CorpusDeclaration:
        """The declaration."""
        return self.declaration

    @cached_property
    def partitions(self) -> dict[str, dg.DynamicPartitionsDefinition]:
        """The shards of each split; the manifest registers them."""
        return {s: dg.DynamicPartitionsDefinition(name=f"{self.corpus.dataset}_{s}_shards") for s in self.corpus.splits}

    def manifest(self, storage: StorageResource) -> Manifest:
        """The committed manifest."""
        return load_manifest(self.corpus, self.store(storage))

    def has_manifest(self, storage: StorageResource) -> bool:
        """Whether there is one yet."""
        return has_manifest(self.corpus, self.store(storage))


def register_partitions(dataset: CorpusAssets, instance: dg.DagsterInstance, manifest: Manifest) -> None:
    """Make the dynamic partitions of every split exactly the manifest's shards."""
    for split, definition in dataset.partitions.items():
        register_in_order(instance, definition, manifest.partitions(split))
