"""IO manager of this project's assets, for local, GCS and R2 storage alike.

A downstream asset with one of these assets as an input gets an `ArtifactHandle`. Files are copied only when they are
read::

    @dg.asset(ins={"bins": dg.AssetIn(["my_corpus", "nanogpt_bins"])})
    def train(bins: ArtifactHandle) -> None:
        data = bins.tokens("train.bin")

An input of many partitions is a dict from partition to handle. A partitioned asset that reads one partition of its
input gets that partition's handle. The project's own assets publish their files themselves and return no value, so
nothing is pickled.
"""

from typing import Any

import dagster as dg

from dataprep_assets.engine.artifact.spec import parse_asset_path
from dataprep_assets.errors import ConfigError, MissingArtifactError
from dataprep_assets.integrity.artifacts import ArtifactHandle
from dataprep_assets.resources.storage import StorageResource

KEY = "artifacts"
STORAGE = "dataprep/storage"
"""Definition metadata of an asset whose dataset sets `storage`."""
PRIVATE = "dataprep/private"
"""Definition metadata of an asset whose dataset is sensitive: only the owner can read copies of its files."""


class ArtifactIOManager(dg.ConfigurableIOManager):
    """IO manager that passes artifacts as handles; `storage` is the resource that the assets themselves use."""

    storage: dg.ResourceDependency[StorageResource]

    def load_input(self, context: dg.InputContext) -> ArtifactHandle | dict[str, ArtifactHandle]:
        upstream = context.upstream_output
        metadata = (upstream.definition_metadata or {}) if upstream is not None else {}
        store = self.storage.artifacts(metadata.get(STORAGE), private=bool(metadata.get(PRIVATE)))
        if not context.has_asset_partitions:
            return ArtifactHandle.from_store(store, parse_asset_path(context.asset_key.path, None))
        artifacts = [parse_asset_path(context.asset_key.path, partition) for partition in context.asset_partition_keys]
        if len(artifacts) == 1 and context.has_partition_key:
            return ArtifactHandle.from_store(store, artifacts[0])
        # Read all receipts together, so that the error names all missing partitions.
        receipts = store.receipts(artifacts)
        if missing := [str(a) for a, receipt in zip(artifacts, receipts, strict=True) if receipt is None]:
            names = ", ".join(missing[:8]) + (", …" if len(missing) > 8 else "")
            raise MissingArtifactError(
                f"{len(missing)} of {len(artifacts)} partitions are missing: {names}. Materialize these partitions "
                "first"
            )
        return {
            str(artifact.partition): ArtifactHandle(store, artifact, receipt)
            for artifact, receipt in zip(artifacts, receipts, strict=True)
            if receipt is not None
        }

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Accept a handle of the asset's artifact, or None if it is finished; raise ConfigError for any other value."""
        if obj is not None and not isinstance(obj, ArtifactHandle):
            raise ConfigError(
                f"{context.asset_key.to_user_string()}: returned a {type(obj).__name__}, but the IO manager {KEY!r} "
                "stores no Python objects. Publish an artifact and return None, or use a different io_manager_key"
            )
        store = self.storage.artifacts((context.definition_metadata or {}).get(STORAGE))
        partitions = context.asset_partition_keys if context.has_asset_partitions else [None]
        for partition in partitions:
            artifact = parse_asset_path(context.asset_key.path, partition)
            receipt = store.require(artifact)
            if len(partitions) == 1:
                location = store.location(artifact)
                context.add_output_metadata({"dagster/uri" if "://" in location else "path": location})
            if obj is not None and (obj.artifact, obj.receipt.content) != (artifact, receipt.content):
                raise ConfigError(
                    f"{context.asset_key.to_user_string()}: returned the handle of a different artifact, "
                    f"{obj.artifact}. Return None, or its own artifact"
                )
