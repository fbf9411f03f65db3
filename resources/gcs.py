"""Artifacts in a Google Cloud Storage bucket: a Dagster resource that uses dagster-gcp's `GCSResource`."""

import dagster as dg
from dagster_gcp.gcs import GCSResource

from dataprep_assets.resources.storage import StorageResource
from dataprep_assets.stores.connect import GcsAddress, StoreAddress


class GcsStorageResource(StorageResource):
    """Artifacts below `prefix` of `bucket`, with Google's default credentials; `gcs` sets the project."""

    gcs: dg.ResourceDependency[GCSResource]
    bucket: str
    prefix: str = ""
    allow_http: bool = False

    def address(self) -> StoreAddress:
        return GcsAddress(bucket=self.bucket, prefix=self.prefix, project=self.gcs.project, allow_http=self.allow_http)
