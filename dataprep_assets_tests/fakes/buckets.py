"""Clients and buckets of a test S3 server, created from the address of a location as users create them."""

import uuid
from typing import Any

from dataprep_assets.stores.amazon.api import build_s3_client_config, create_s3_client
from dataprep_assets.stores.amazon.s3 import S3Store
from dataprep_assets.stores.connect import S3Address
from dataprep_assets.stores.retry import RetryPolicy
from dataprep_assets_tests.fakes.swift_server import KEY_ID, SECRET

QUICK = RetryPolicy(attempts=4, base_seconds=0.0, max_seconds=0.0)
PART_BYTES = 5 * 1024 * 1024


def make_place(url: str, secret: str = SECRET) -> S3Address:
    """Return the location of a server with its keys; the store adds the bucket."""
    return S3Address(bucket="", endpoint_url=url, region="us-east-1", access_key_id=KEY_ID, secret_access_key=secret)


def new_client(url: str, *, read_seconds: float = 20.0, secret: str = SECRET) -> Any:
    """Return a client of the server at `url`, with the project's own configuration."""
    config = build_s3_client_config(connect_seconds=5, read_seconds=read_seconds)
    return create_s3_client(make_place(url, secret), config)


def new_bucket(url: str) -> str:
    """Create an empty bucket and return its name."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    new_client(url).create_bucket(Bucket=name)
    return name


def new_store(url: str, bucket: str, prefix: str = "", *, read_seconds: float = 20.0, **settings: Any) -> S3Store:
    """Return a store with parts of 5 MiB and retries without delays."""
    return S3Store(
        new_client(url, read_seconds=read_seconds),
        bucket,
        prefix,
        **{"retry": QUICK, "part_bytes": PART_BYTES, "range_bytes": PART_BYTES, "workers": 4, **settings},
    )
