"""The IO manager of this project's assets, for local, GCS and R2 storage alike.

A downstream asset that names one of ours as an input gets an `ArtifactHandle`; files are copied only when read::

    @dg.asset(ins={"bins": dg.AssetIn(["my_corpus", "nanogpt_bins"])})
    def train(bins: ArtifactHandle) -> None:
        data = bins.tokens("train.bin")

An input of many partitions is a dict, partition → handle; a partitioned asset that reads one partition of another gets
the handle of that partition. Our own assets publish in their bodies and return no value, so nothing is ever pickled.
"""

from typing import Any

import dagster as dg

from dataprep_assets.engine.artifact.spec import artifact_at
from dataprep_assets.errors import ConfigError, MissingArtifactError
from dataprep_assets.integrity.artifacts import ArtifactHandle
from dataprep_assets.resources.storage import StorageResource

KEY = "artifacts"
STORAGE = "dataprep/storage"
"""Definition metadata of an asset whose dataset sets `storage`."""
PRIVATE = "dataprep/private"
"""Definition metadata of an asset whose dataset is sensitive: only the owner can read copies of its files."""


class ArtifactIOManager(dg.ConfigurableIOManager):
    """See the module. `storage` is the resource that the assets themselves use."""

    storage: dg.ResourceDependency[StorageResource]

    def load_input(self, context: dg.InputContext) -> ArtifactHandle | dict[str, ArtifactHandle]:
        upstream = context.upstream_output
        said = (upstream.definition_metadata or {}) if upstream is not None else {}
        store = self.storage.artifacts(said.get(STORAGE), private=bool(said.get(PRIVATE)))
        if not context.has_asset_partitions:
            return ArtifactHandle.of(store, artifact_at(context.asset_key.path, None))
        artifacts = [artifact_at(context.asset_key.path, partition) for partition in context.asset_partition_keys]
        if len(artifacts) == 1 and context.has_partition_key:
            return ArtifactHandle.of(store, artifacts[0])
        # looked at together, so that an error names all that are missing
        receipts = store.receipts(artifacts)
        if missing := [str(a) for a, receipt in zip(artifacts, receipts, strict=True) if receipt is None]:
            shown = ", ".join(missing[:8]) + (", …" if len(missing) > 8 else "")
            raise MissingArtifactError(
                f"{len(missing)} of {len(artifacts)} partitions are missing: {shown}. Materialize them first"
            )
        return {
            str(artifact.partition): ArtifactHandle(store, artifact, receipt)
            for artifact, receipt in zip(artifacts, receipts, strict=True)
            if receipt is not None
        }

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Accept the handle of the asset's own artifact, or None if that is finished; raises for anything else."""
        if obj is not None and not isinstance(obj, ArtifactHandle):
            raise ConfigError(
                f"{context.asset_key.to_user_string()}: returned a {type(obj).__name__}, but the IO manager {KEY!r} "
                "stores no Python objects. Publish an artifact and return None, or use a different io_manager_key"
            )
        store = self.storage.artifacts((context.definition_metadata or {}).get(STORAGE))
        partitions = context.asset_partition_keys if context.has_asset_partitions else [None]
        for partition in partitions:
            artifact = artifact_at(context.asset_key.path, partition)
            found = store.require(artifact)
            if len(partitions) == 1:
                place = store.location(artifact)
                context.add_output_metadata({"dagster/uri" if "://" in place else "path": place})
            if obj is not None and (obj.artifact, obj.receipt.content) != (artifact, found.content):
                raise ConfigError(
                    f"{context.asset_key.to_user_string()}: returned the handle of a different artifact, {obj.artifact}"
                )
