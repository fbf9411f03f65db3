"""Clients and buckets of a test S3 server, made as users make them: from a dagster-aws-like resource."""

import uuid
from dataclasses import dataclass
from typing import Any

from dataprep_assets.stores.retry import RetryPolicy
from dataprep_assets.stores.s3 import S3Store
from dataprep_assets.stores.s3_api import s3_client, s3_client_config
from dataprep_assets_tests.fakes.swift_server import KEY_ID, SECRET

QUICK = RetryPolicy(attempts=4, base_seconds=0.0, max_seconds=0.0)
PART_BYTES = 5 * 1024 * 1024


@dataclass(kw_only=True)
class Resource:
    """The fields of `dagster_aws.s3.S3Resource`."""

    endpoint_url: str | None
    aws_access_key_id: str | None = KEY_ID
    aws_secret_access_key: str | None = SECRET
    aws_session_token: str | None = None
    region_name: str | None = "us-east-1"
    profile_name: str | None = None
    use_ssl: bool = True
    use_unsigned_session: bool = False
    verify: Any = None


def new_client(url: str, *, read_seconds: float = 20.0, **settings: Any) -> Any:
    """A client of the server at `url`, with the project's own configuration."""
    config = s3_client_config(connect_seconds=5, read_seconds=read_seconds)
    return s3_client(Resource(endpoint_url=url, **settings), config)


def new_bucket(url: str) -> str:
    """The name of a new, empty bucket."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    new_client(url).create_bucket(Bucket=name)
    return name


def new_store(url: str, bucket: str, prefix: str = "", *, read_seconds: float = 20.0, **settings: Any) -> S3Store:
    """A store with parts of 5 MiB and retries without waits."""
    return S3Store(
        new_client(url, read_seconds=read_seconds),
        bucket,
        prefix,
        **{"retry": QUICK, "part_bytes": PART_BYTES, "range_bytes": PART_BYTES, "workers": 4, **settings},
    )
