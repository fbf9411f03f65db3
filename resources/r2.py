"""Artifacts in an S3-compatible bucket (Cloudflare R2, AWS, MinIO), as a resource based on dagster-aws's `S3Resource`.

`S3Resource.get_client()` only configures boto3's retries (dagster-aws 0.29, `s3/utils.py`). Therefore the store creates
its own client with its own timeouts, checksums and retries (`stores/amazon/api.py`), from the resource's endpoint,
region, profile and keys. The resource's other fields are not used. Set AWS_CA_BUNDLE for a certificate that the machine
does not trust.
"""

import dagster as dg
from dagster_aws.s3 import S3Resource
from pydantic import Field

from dataprep_assets.resources.storage import StorageResource
from dataprep_assets.stores.connect import AWS_PAIR, S3Address, StoreAddress


class R2StorageResource(StorageResource):
    """Artifacts below `prefix` of `bucket`; `s3` provides the endpoint and the credentials.

    Pass secrets as `dg.EnvVar`. `key_names` are the variables that error messages mention.
    """

    s3: dg.ResourceDependency[S3Resource]
    bucket: str
    prefix: str = ""
    allow_http: bool = False
    key_names: list[str] = Field(default=list(AWS_PAIR))

    def address(self) -> StoreAddress:
        key_id, secret = self.key_names
        return S3Address(
            bucket=self.bucket,
            prefix=self.prefix,
            endpoint_url=self.s3.endpoint_url,
            region=self.s3.region_name,
            access_key_id=self.s3.aws_access_key_id,
            secret_access_key=self.s3.aws_secret_access_key,
            session_token=self.s3.aws_session_token,
            profile=self.s3.profile_name,
            allow_http=self.allow_http,
            key_names=(key_id, secret),
        )
