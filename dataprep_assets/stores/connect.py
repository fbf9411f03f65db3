"""Store addresses: small values that name a bucket or a folder and contain everything needed to open it.

A `StoreAddress` is the address of a store; an artifact's location is a path in it. An address can be pickled into
worker processes and created from a URL and the environment, without Dagster. Its repr never contains secrets.

To add a kind of object storage, add a subclass of `BucketAddress` here, list it in `BUCKETS`, and write its `Store`.

Environment variables (read by `parse_place`):

- `s3://bucket/prefix`: the endpoint is DATAPREP_ENDPOINT_URL, or the endpoint of the Cloudflare account
  R2_DATASET_ACCOUNT_ID. The credentials are R2_DATASET_WRITE_ACCESS_KEY_ID and R2_DATASET_WRITE_SECRET_ACCESS_KEY (and
  R2_DATASET_WRITE_SESSION_TOKEN for temporary keys), else R2_DATASET_READ_…, else boto3's own chain (AWS_ACCESS_KEY_ID,
  AWS_PROFILE, an instance's role; it may use the endpoint AWS_ENDPOINT_URL).
- `gs://bucket/prefix`: Google's default credentials (GOOGLE_APPLICATION_CREDENTIALS, `gcloud auth application-default
  login`, an instance's account), GOOGLE_CLOUD_PROJECT, STORAGE_EMULATOR_HOST.
- `file:///folder` or a path.
- DATAPREP_ALLOW_HTTP=true: endpoints on other machines may use http://.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any, ClassVar, Literal, Self
from urllib.parse import SplitResult, unquote, urlsplit

from dataprep_assets.errors import ConfigError
from dataprep_assets.stores.endpoints import allows_http, check_endpoint
from dataprep_assets.stores.files import expand_path
from dataprep_assets.stores.local import LocalStore
from dataprep_assets.stores.store import NEEDS_BOTO3, Store

Access = Literal["keys", "anonymous", "requester_pays"]
"""Access to a bucket: with credentials, without any, or with credentials of the reader, who pays for the requests."""
WRITE_PAIR = ("R2_DATASET_WRITE_ACCESS_KEY_ID", "R2_DATASET_WRITE_SECRET_ACCESS_KEY")
READ_PAIR = ("R2_DATASET_READ_ACCESS_KEY_ID", "R2_DATASET_READ_SECRET_ACCESS_KEY")
AWS_PAIR = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_ENDPOINT = re.compile(r"https?://[^\s/@?#]+(?:/[^\s?#]*)?")


@dataclass(frozen=True, kw_only=True)
class LocalAddress:
    """Address of a folder."""

    root: Path

    def __call__(self) -> Store:
        return LocalStore(self.root)

    @property
    def url(self) -> str:
        return self.root.resolve().as_uri()


@dataclass(frozen=True, kw_only=True)
class BucketAddress(ABC):
    """Address of a prefix of a bucket.

    A source may set `endpoint_url`, `region` and `access` if the class has these fields.
    """

    # `scheme` is the scheme of the bucket's URLs, and `kinds` has the values of DATAPREP_STORAGE that select this
    # class. `mirror` is a folder below a source's `cache_dir`, and no bucket can have this name. `client` is the
    # client's module, which is imported when the store is opened, and `needs` is the error message if the module is not
    # installed.
    scheme: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    mirror: ClassVar[str]
    client: ClassVar[str]
    needs: ClassVar[str]
    bucket: str
    prefix: str = ""
    allow_http: bool = False

    @abstractmethod
    def __call__(self) -> Store:
        """Open a new store, which threads may share, but processes may not."""

    @property
    def url(self) -> str:
        """URL without credentials."""
        return f"{self.scheme}://{self.bucket}/{self.prefix}".rstrip("/")

    def with_environment(self, environment: Mapping[str, str], *, profile: str | None, reads: bool) -> Self:
        """Return the address with the environment's settings for this class; `parse_place` describes the arguments."""
        return self

    def with_options(self, **options: Any) -> Self:
        """Return the address with the options of a source, which are named after its fields."""
        return replace(self, **options)


StoreAddress = LocalAddress | BucketAddress
"""The address of a store; calling it opens the store."""


@dataclass(frozen=True, kw_only=True)
class S3Address(BucketAddress):
    """Address of a prefix of a bucket in AWS S3, Cloudflare R2, MinIO or another S3-compatible store.

    Without keys and profile, boto3's own chain finds the credentials. `key_names` are the variables named in messages.
    """

    scheme = "s3"
    kinds = ("r2", "s3")
    mirror = ""
    client = "boto3"
    needs = NEEDS_BOTO3
    endpoint_url: str | None = None
    region: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    profile: str | None = None
    access: Access = "keys"
    key_names: tuple[str, str] = AWS_PAIR

    def __call__(self) -> Store:
        # Import the client here, because addresses are also created and compared where it is not installed.
        from dataprep_assets.stores.amazon.api import CredentialNames, create_s3_client
        from dataprep_assets.stores.amazon.s3 import S3Store

        names = CredentialNames(key_id=self.key_names[0], secret=self.key_names[1])
        return S3Store(create_s3_client(self), self.bucket, self.prefix, credentials=names)

    def with_environment(self, environment: Mapping[str, str], *, profile: str | None, reads: bool) -> Self:
        if profile is not None:
            return replace(self, profile=profile)
        names = list_s3_credentials(environment)
        key_id, secret, token = (environment.get(name) or None for name in names or ("", "", ""))
        return replace(
            self,
            endpoint_url=find_s3_endpoint(environment),
            access_key_id=key_id,
            secret_access_key=secret,
            session_token=token,
            key_names=names[:2] if names else list_names_to_set(environment, reads=reads),
        )

    def with_options(self, **options: Any) -> Self:
        endpoint, place = options["endpoint_url"] or self.endpoint_url, self
        if endpoint and self.endpoint_url and endpoint.rstrip("/") != self.endpoint_url.rstrip("/"):
            # Drop the environment's keys, because they belong to a different store.
            place = type(self)(bucket=self.bucket, prefix=self.prefix)
        # Leave out the region `auto` without an endpoint, because this region does not exist on AWS.
        region = None if options["region"] == "auto" and endpoint is None else options["region"]
        return replace(place, **options | {"endpoint_url": endpoint, "region": region})


@dataclass(frozen=True, kw_only=True)
class GcsAddress(BucketAddress):
    """Address of a prefix of a Google Cloud Storage bucket, with Google's default credentials."""

    scheme = "gs"
    kinds = ("gcs",)
    mirror = "gs"
    client = "google.cloud.storage"
    needs = (
        "GCS storage needs Google's client. Run `pip install google-cloud-storage requests`, or install the extra `gcs`"
    )
    project: str | None = None
    access: Access = "keys"

    def __call__(self) -> Store:
        try:
            from google.auth.exceptions import DefaultCredentialsError
            from google.cloud import storage
        except ImportError as error:
            raise ConfigError(self.needs) from error
        from dataprep_assets.stores.gcs import GcsStore

        try:
            if self.access == "anonymous":
                client = storage.Client.create_anonymous_client()
            else:
                client = storage.Client(project=self.project)
        except (DefaultCredentialsError, OSError, ValueError) as error:
            # Show only the error's type, because the error's message could quote the key file.
            raise ConfigError(
                f"{self.url}: no usable Google credentials ({type(error).__name__}). Set "
                "GOOGLE_APPLICATION_CREDENTIALS to a key file, or run `gcloud auth application-default login`. Also "
                "set GOOGLE_CLOUD_PROJECT if the credentials have no project. For a source in a public bucket, set "
                "`access: anonymous`"
            ) from None
        # Check the client's own endpoint, because the client reads STORAGE_EMULATOR_HOST itself.
        check_endpoint(client.api_endpoint, "STORAGE_EMULATOR_HOST", allow_http=self.allow_http)
        pays = self.access == "requester_pays"
        return GcsStore(client, self.bucket, self.prefix, user_project=client.project if pays else None)

    def with_environment(self, environment: Mapping[str, str], *, profile: str | None, reads: bool) -> Self:
        return replace(self, project=environment.get("GOOGLE_CLOUD_PROJECT") or None)


BUCKETS: Mapping[str, type[BucketAddress]] = {place.scheme: place for place in (S3Address, GcsAddress)}
"""Address class for each URL scheme."""
KINDS = {"local": "file"} | dict(sorted((kind, place.scheme) for place in BUCKETS.values() for kind in place.kinds))
"""URL scheme for each value of DATAPREP_STORAGE."""
BUCKET_URL = rf"^({'|'.join(BUCKETS)})://[A-Za-z0-9][A-Za-z0-9._-]{{1,220}}[A-Za-z0-9](/[^?#]*)?$"
"""Pattern of a bucket URL, with or without a prefix."""


def is_bucket(url: str) -> bool:
    """Return whether a path or URL begins with the scheme of a bucket."""
    return url.startswith(tuple(f"{scheme}://" for scheme in BUCKETS))


def format_bucket_urls(rest: str = "bucket/prefix") -> str:
    """Return a comma-separated list for messages: `rest` with the URL scheme of each kind of bucket."""
    return ", ".join(f"{scheme}://{rest}" for scheme in BUCKETS)


def list_s3_credentials(environment: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Return the names of the variables with the key id, the secret and the session token (only for temporary keys).

    Write credentials are preferred. None means boto3's chain, which includes AWS_…. Raises ConfigError naming the
    missing variable if only one of the two is set.
    """
    for key_id, secret in (WRITE_PAIR, READ_PAIR):
        present_names = [name for name in (key_id, secret) if environment.get(name)]
        if len(present_names) == 1:
            missing = secret if present_names == [key_id] else key_id
            raise ConfigError(f"{missing} is not set, but {present_names[0]} is. Set both, or neither")
        if present_names:
            return key_id, secret, secret.replace("SECRET_ACCESS_KEY", "SESSION_TOKEN")
    return None


def find_s3_endpoint(environment: Mapping[str, str]) -> str | None:
    """Return DATAPREP_ENDPOINT_URL, else the endpoint of the Cloudflare account R2_DATASET_ACCOUNT_ID, else None.

    Raises ConfigError if the variable is not a valid endpoint or account id.
    """
    if endpoint := environment.get("DATAPREP_ENDPOINT_URL"):
        if not _ENDPOINT.fullmatch(endpoint):  # the value is not shown, because text before an @ may be a secret
            raise ConfigError("DATAPREP_ENDPOINT_URL: must be http(s)://host[:port] without credentials")
        return endpoint
    # Check the account id, because it becomes part of a host name, and a dot or slash in it could lead to someone
    # else's host.
    account = environment.get("R2_DATASET_ACCOUNT_ID")
    if account and not account.isalnum():
        raise ConfigError("R2_DATASET_ACCOUNT_ID: must contain only letters and digits. Set the account ID, not a URL")
    return f"https://{account}.r2.cloudflarestorage.com" if account else None


def explain_missing_library(url: str) -> str | None:
    """Return the message about the missing library for a store, with the remedy; None if no library is missing."""
    if (place_class := BUCKETS.get(urlsplit(url).scheme)) is None:
        return None
    try:
        return place_class.needs if find_spec(place_class.client) is None else None
    except ModuleNotFoundError:  # a parent package is not installed
        return place_class.needs


def parse_place(
    url: str, environment: Mapping[str, str], *, profile: str | None = None, reads: bool = False
) -> StoreAddress:
    """Return the address for a URL or path, with the environment's credentials and endpoint (see the module docstring).

    `profile` is a profile of boto3's own configuration, which then provides the credentials and the endpoint. `reads`
    means that nothing will be written, so messages ask only for keys with read access.

    Raises ConfigError for other URLs.
    """
    if "://" not in url:
        return LocalAddress(root=expand_path(url))
    parts = split_storage_url(url)
    if parts.scheme == "file":
        return LocalAddress(root=Path(unquote(parts.path)))
    prefix, allow_http = parts.path.strip("/"), allows_http(environment)
    place = BUCKETS[parts.scheme](bucket=parts.netloc, prefix=prefix, allow_http=allow_http)
    return place.with_environment(environment, profile=profile, reads=reads)


def split_storage_url(url: str) -> SplitResult:
    """Return the parts of the URL of a bucket or a folder. Raises ConfigError for other URLs."""
    allowed = f"Use {format_bucket_urls()}, file:///folder or a path"
    try:
        parts = urlsplit(url)
        _ = parts.port  # urlsplit parses the port only on access, and raises ValueError if the port is invalid
    except ValueError:  # the message omits the URL, which may contain a secret
        raise ConfigError(f"invalid storage URL. {allowed}") from None
    if "@" in parts.netloc:
        # The message omits the URL, because the part before the @ is a secret.
        raise ConfigError("a storage URL contains credentials. Remove them, and set them in the environment")
    is_folder = parts.scheme == "file" and parts.netloc in ("", "localhost")
    is_bucket = parts.scheme in BUCKETS and parts.netloc and not parts.query and not parts.fragment
    if not (is_folder or is_bucket):
        raise ConfigError(f"{url!r} is not a storage URL. {allowed}")
    return parts


def list_names_to_set(environment: Mapping[str, str], *, reads: bool = False) -> tuple[str, str]:
    """Return the names of the two variables to set if no credentials are set.

    If the environment sets R2's account or bucket, these are R2's variables; with `reads`, its variables for read keys.
    """
    if environment.get("R2_DATASET_ACCOUNT_ID") or environment.get("R2_DATASET_BUCKET_NAME"):
        return READ_PAIR if reads else WRITE_PAIR
    return AWS_PAIR


def find_common_server(source: StoreAddress, destination: StoreAddress) -> tuple[Store, str, str] | None:
    """Return a store that contains both addresses, and their prefixes; None if no server can copy between them."""
    if isinstance(source, LocalAddress) or isinstance(destination, LocalAddress):
        return None
    # Compare the addresses without prefixes, because a server copies only within one bucket, with one endpoint and the
    # same credentials.
    if replace(source, prefix="") != replace(destination, prefix=""):
        return None
    prefixes = [f"{place.prefix}/" if place.prefix else "" for place in (source, destination)]
    return replace(source, prefix="")(), prefixes[0], prefixes[1]


def list_consumer_lines(place: StoreAddress) -> list[str]:
    """Return the environment variables for readers of this location, in shell syntax, with empty secrets to fill in."""
    if isinstance(place, S3Address):
        endpoint = place.endpoint_url or ""
        account = endpoint.removeprefix("https://").removesuffix(".r2.cloudflarestorage.com")
        # Check the account id, because a bucket in a jurisdiction has an endpoint with a dot (`<id>.eu`), which is not
        # an account id (`find_s3_endpoint`).
        is_r2 = account.isalnum() and endpoint == f"https://{account}.r2.cloudflarestorage.com"
        account_text = f"R2_DATASET_ACCOUNT_ID={account}" if is_r2 else f"DATAPREP_ENDPOINT_URL={endpoint}"
        return [
            f"DATAPREP_STORAGE={'r2' if endpoint else 's3'}",
            *([account_text] if endpoint else []),
            f"R2_DATASET_BUCKET_NAME={place.bucket}",
            "R2_DATASET_READ_ACCESS_KEY_ID=",
            "R2_DATASET_READ_SECRET_ACCESS_KEY=",
            f"DATASET_BINS_PATH={place.prefix}",
        ]
    if isinstance(place, LocalAddress):
        return ["DATAPREP_STORAGE=local", f"DATAPREP_ROOT={quote(unquote(place.url.removeprefix('file://')))}"]
    return [f"DATAPREP_STORAGE={place.kinds[0]}", f"DATAPREP_BUCKET={place.bucket}", f"DATAPREP_ROOT={place.prefix}"]
