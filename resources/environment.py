"""Storage that the environment configures.

DATAPREP_STORAGE selects the kind of storage. `local` (the default) needs no other variable:

| variable | local | gcs | r2, s3 |
|---|---|---|---|
| DATAPREP_ROOT | folder (default `.dataprep/artifacts` in the project) | prefix | prefix; else DATASET_BINS_PATH |
| DATAPREP_BUCKET | | required | required; else R2_DATASET_BUCKET_NAME |
| DATAPREP_ENDPOINT_URL | | | r2: required; else R2_DATASET_ACCOUNT_ID (Cloudflare's own endpoint) |
| R2_DATASET_WRITE_ACCESS_KEY_ID, R2_DATASET_WRITE_SECRET_ACCESS_KEY | | | else R2_DATASET_READ_… |
| DATAPREP_ALLOW_HTTP | | `true` | endpoints may be http:// beyond this machine (default `false`) |
| DATAPREP_CACHE | | folder | folder of copies and builds (default `.dataprep/cache` in the project) |
| DATAPREP_CACHE_BYTES | | number | maximum size of the copies of one bucket; not set: no limit |

`r2` is any store with an S3 API behind an endpoint; `s3` is AWS. Without a pair of R2_DATASET_… keys, boto3 finds the
credentials (AWS_ACCESS_KEY_ID, AWS_PROFILE, an instance's role). GCS uses GOOGLE_APPLICATION_CREDENTIALS or other
default credentials, GOOGLE_CLOUD_PROJECT and STORAGE_EMULATOR_HOST.

A dataset's own `storage:` (a folder, `s3://bucket/prefix`, `gs://bucket/prefix`) takes precedence for that dataset. Its
credentials and endpoint come from the same variables.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg

from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.storage import choose_cache, find_local_storage
from dataprep_assets.resources.storage import StorageResource
from dataprep_assets.stores.connect import (
    AWS_PAIR,
    KINDS,
    WRITE_PAIR,
    find_s3_endpoint,
    list_names_to_set,
    list_s3_credentials,
)
from dataprep_assets.stores.endpoints import allows_http


def build_storage(project_root: Path, environment: Mapping[str, str] = os.environ) -> StorageResource:
    """Return the storage that the environment configures (see the module); its folders are relative to `project_root`.

    Raises ConfigError, which names the variable, if a variable is missing or invalid.
    """
    local = find_local_storage(project_root, environment)
    cache, cache_bytes = choose_cache(project_root, environment)
    common: dict[str, Any] = {"cache": str(cache), "cache_bytes": cache_bytes}
    if local is not None:
        return StorageResource(root=str(local.root), **common)
    kind, root = environment["DATAPREP_STORAGE"], environment.get("DATAPREP_ROOT") or ""
    if kind == "gcs":
        return _build_gcs(environment, root, common)
    if KINDS[kind] == "s3":
        return _build_s3(environment, kind, root, common)
    bucket = _require_variable(environment, kind, "DATAPREP_BUCKET")
    return StorageResource(root=f"{KINDS[kind]}://{bucket}/{root.strip('/')}", **common)


def _build_gcs(environment: Mapping[str, str], root: str, common: Mapping[str, Any]) -> StorageResource:
    try:
        from dagster_gcp.gcs import GCSResource

        from dataprep_assets.resources.gcs import GcsStorageResource
    except ImportError as error:
        raise ConfigError(
            "DATAPREP_STORAGE: gcs needs the extra `gcs`. Install it: pip install 'dataprep-assets[gcs]'"
        ) from error
    return GcsStorageResource(
        gcs=GCSResource(project=environment.get("GOOGLE_CLOUD_PROJECT") or None),
        bucket=_require_variable(environment, "gcs", "DATAPREP_BUCKET"),
        prefix=root.strip("/"),
        allow_http=allows_http(environment),
        **common,
    )


def _build_s3(environment: Mapping[str, str], kind: str, root: str, common: Mapping[str, Any]) -> StorageResource:
    try:
        from dagster_aws.s3 import S3Resource

        from dataprep_assets.resources.r2 import R2StorageResource
    except ImportError as error:
        raise ConfigError(
            f"DATAPREP_STORAGE: {kind} needs the extra `r2`. Install it: pip install 'dataprep-assets[r2]'"
        ) from error
    bucket = _require_variable(environment, kind, "DATAPREP_BUCKET", "R2_DATASET_BUCKET_NAME")
    # Require an endpoint for R2, because boto3 would otherwise connect to AWS.
    if kind == "r2":
        _require_variable(environment, kind, "DATAPREP_ENDPOINT_URL", "R2_DATASET_ACCOUNT_ID")
    names = list_s3_credentials(environment)
    if names is None and kind == "r2" and not any(environment.get(name) for name in (AWS_PAIR[0], "AWS_PROFILE")):
        raise ConfigError(
            f"DATAPREP_STORAGE={kind} needs credentials. Set {WRITE_PAIR[0]} and {WRITE_PAIR[1]}, or {AWS_PAIR[0]} and "
            f"{AWS_PAIR[1]}, or AWS_PROFILE"
        )
    keys: dict[str, Any] = {}
    if names is not None:
        # Pass the names of the variables, because Dagster's UI does not show the value of an `EnvVar`.
        fields = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
        keys = {field: dg.EnvVar(name) for field, name in zip(fields, names, strict=True) if environment.get(name)}
    return R2StorageResource(
        s3=S3Resource(
            endpoint_url=find_s3_endpoint(environment), profile_name=environment.get("AWS_PROFILE") or None, **keys
        ),
        bucket=bucket,
        prefix=(root or environment.get("DATASET_BINS_PATH") or "").strip("/"),
        allow_http=allows_http(environment),
        key_names=list(names[:2] if names else list_names_to_set(environment)),
        **common,
    )


def open_storage(project_root: Path) -> StorageResource:
    """Return the storage that the environment configures, for use outside a run: its `EnvVar`s are resolved."""
    return resolve_variables(build_storage(project_root))


def resolve_variables(resource: StorageResource) -> StorageResource:
    """Return the resource with its `EnvVar`s resolved."""
    if type(resource) is StorageResource:
        # A local storage has no `EnvVar`. Resolving it would create a Dagster instance, which takes a seventh of a
        # command's time.
        return resource
    with resource.process_config_and_initialize_cm() as storage:  # the resource needs no teardown
        assert isinstance(storage, StorageResource)
        return storage


def _require_variable(environment: Mapping[str, str], kind: str, *names: str) -> str:
    for name in names:
        if value := environment.get(name):
            return value
    alternatives = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
    raise ConfigError(f"DATAPREP_STORAGE={kind} needs {names[0]}{alternatives}. Set it")
