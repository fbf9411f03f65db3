"""Addresses of stores: small values that name a bucket or a folder, with everything needed to open it.

A `StoreAddress` is the address of a store; the path of an artifact in it is the artifact's location. It can be pickled
into worker processes and made from a URL and the environment, without Dagster. Secrets are never part of its repr.

The environment (`place_of`):

- `s3://bucket/prefix`: endpoint DATAPREP_ENDPOINT_URL, or that of the Cloudflare account R2_DATASET_ACCOUNT_ID;
  credentials R2_DATASET_WRITE_ACCESS_KEY_ID and R2_DATASET_WRITE_SECRET_ACCESS_KEY (of temporary keys also
  R2_DATASET_WRITE_SESSION_TOKEN), else R2_DATASET_READ_…, else boto3's own chain (AWS_ACCESS_KEY_ID, AWS_PROFILE, an
  instance's role; its endpoint may be AWS_ENDPOINT_URL).
- `gs://bucket/prefix`: Google's default credentials (GOOGLE_APPLICATION_CREDENTIALS, `gcloud auth application-default
  login`, an instance's account), GOOGLE_CLOUD_PROJECT, STORAGE_EMULATOR_HOST.
- `file:///folder` or a path.
- DATAPREP_ALLOW_HTTP=true: endpoints may be http:// beyond this machine.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Literal, Protocol
from urllib.parse import unquote, urlsplit

from dataprep_assets.errors import ConfigError
from dataprep_assets.project import expanded
from dataprep_assets.stores.endpoints import allows_http, check_endpoint
from dataprep_assets.stores.local import LocalStore
from dataprep_assets.stores.store import NEEDS_BOTO3, Store

Access = Literal["keys", "anonymous", "requester_pays"]
"""How a bucket is reached: with credentials; without any; or with those of the reader, who pays for the requests."""
WRITE_PAIR = ("R2_DATASET_WRITE_ACCESS_KEY_ID", "R2_DATASET_WRITE_SECRET_ACCESS_KEY")
READ_PAIR = ("R2_DATASET_READ_ACCESS_KEY_ID", "R2_DATASET_READ_SECRET_ACCESS_KEY")
AWS_PAIR = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_NEEDS_GOOGLE = "GCS stores need Google's client: pip install google-cloud-storage requests, or the extra `gcs`"
_ADDRESSES = "give s3://bucket/prefix, gs://bucket/prefix, file:///folder or a path"
_ENDPOINT = re.compile(r"https?://[^\s/@?#]+(?:/[^\s?#]*)?")


class StoreAddress(Protocol):
    """The address of a store; calling it opens the store."""

    def __call__(self) -> Store:
        """A new store; safe to share between threads, not between processes."""
        ...

    @property
    def url(self) -> str:
        """Its URL, without credentials."""
        ...


@dataclass(frozen=True, kw_only=True)
class LocalPlace:
    """A folder."""

    root: Path

    def __call__(self) -> Store:
        return LocalStore(self.root)

    @property
    def url(self) -> str:
        return self.root.resolve().as_uri()


@dataclass(frozen=True, kw_only=True)
class S3Place:
    """A prefix of a bucket of AWS S3, Cloudflare R2, MinIO, or another store that speaks S3.

    Without keys and profile, boto3's own chain finds the credentials. `key_names` are the variables that messages name.
    """

    bucket: str
    prefix: str = ""
    endpoint_url: str | None = None
    region: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    profile: str | None = None
    allow_http: bool = False
    access: Access = "keys"
    key_names: tuple[str, str] = AWS_PAIR

    def __call__(self) -> Store:
        # Imported only now: a place can be made and compared without the client that it takes to open it.
        from dataprep_assets.stores.amazon.api import CredentialNames, s3_client
        from dataprep_assets.stores.amazon.s3 import S3Store

        names = CredentialNames(key_id=self.key_names[0], secret=self.key_names[1])
        return S3Store(s3_client(self), self.bucket, self.prefix, credentials=names)

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


@dataclass(frozen=True, kw_only=True)
class GcsPlace:
    """A prefix of a Google Cloud Storage bucket, with Google's default credentials or those of a file."""

    bucket: str
    prefix: str = ""
    project: str | None = None
    credentials_file: str | None = None
    allow_http: bool = False
    access: Access = "keys"

    def __call__(self) -> Store:
        try:
            from google.auth.exceptions import DefaultCredentialsError
            from google.cloud import storage
        except ImportError as error:
            raise ConfigError(_NEEDS_GOOGLE) from error
        from dataprep_assets.stores.gcs import GcsStore

        try:
            if self.access == "anonymous":
                client = storage.Client.create_anonymous_client()
            elif self.credentials_file is None:
                client = storage.Client(project=self.project)
            else:
                client = storage.Client.from_service_account_json(self.credentials_file, project=self.project)
        except (DefaultCredentialsError, OSError, ValueError) as error:
            # Only the type: the message could quote the key file.
            raise ConfigError(
                f"{self.url}: no usable Google credentials ({type(error).__name__}). Set "
                "GOOGLE_APPLICATION_CREDENTIALS to a key file, or run `gcloud auth application-default login`; and set "
                "GOOGLE_CLOUD_PROJECT where the credentials name no project. For a source in a public bucket set "
                "`access: anonymous`"
            ) from None
        # The client took the variable from the environment by itself, so it is asked where it would send to.
        check_endpoint(client.api_endpoint, "STORAGE_EMULATOR_HOST", allow_http=self.allow_http)
        pays = self.access == "requester_pays"
        return GcsStore(client, self.bucket, self.prefix, user_project=client.project if pays else None)

    @property
    def url(self) -> str:
        return f"gs://{self.bucket}/{self.prefix}".rstrip("/")


@dataclass(frozen=True, kw_only=True)
class S3Credentials:
    """The variables that have the key id, the secret and, for temporary keys, the session token."""

    key_id: str
    secret: str
    session_token: str | None = None


def s3_credentials(environment: Mapping[str, str]) -> S3Credentials | None:
    """The pair of variables that is set, write credentials first; None: boto3's chain, including AWS_….

    Raises ConfigError naming the missing half of a pair.
    """
    for key_id, secret in (WRITE_PAIR, READ_PAIR):
        there = [name for name in (key_id, secret) if environment.get(name)]
        if len(there) == 1:
            missing = secret if there == [key_id] else key_id
            raise ConfigError(f"{missing}: not set, but {there[0]} is. Set both, or neither")
        if there:
            token = secret.replace("SECRET_ACCESS_KEY", "SESSION_TOKEN")
            return S3Credentials(key_id=key_id, secret=secret, session_token=token if environment.get(token) else None)
    return None


def s3_endpoint(environment: Mapping[str, str]) -> str | None:
    """DATAPREP_ENDPOINT_URL, else the endpoint of the Cloudflare account R2_DATASET_ACCOUNT_ID, else None.

    Raises ConfigError if the variable is not an endpoint or an account id.
    """
    if endpoint := environment.get("DATAPREP_ENDPOINT_URL"):
        if not _ENDPOINT.fullmatch(endpoint):  # not repeated: the part before an @ is a secret
            raise ConfigError("DATAPREP_ENDPOINT_URL: must be http(s)://host[:port], without credentials in it")
        return endpoint
    # It becomes part of a host's name: a dot or a slash in it could lead to somebody else's host.
    account = environment.get("R2_DATASET_ACCOUNT_ID")
    if account and not account.isalnum():
        raise ConfigError("R2_DATASET_ACCOUNT_ID: an account id has letters and digits only; set no URL here")
    return f"https://{account}.r2.cloudflarestorage.com" if account else None


def missing_library(url: str) -> str | None:
    """What has to be installed to open the store of this address, as its error says; None if nothing is missing."""
    scheme = urlsplit(url).scheme
    if scheme == "s3":
        return NEEDS_BOTO3 if find_spec("boto3") is None else None
    try:
        return _NEEDS_GOOGLE if scheme == "gs" and find_spec("google.cloud.storage") is None else None
    except ModuleNotFoundError:  # a package above it
        return _NEEDS_GOOGLE


def place_of(
    url: str, environment: Mapping[str, str], *, profile: str | None = None, reads: bool = False
) -> StoreAddress:
    """The place of `url` (or a path), reached as the environment says (see the module).

    Raises ConfigError for other URLs.

    `profile` names a profile of boto3's own configuration, which then provides the credentials and the endpoint.
    `reads` says that nothing will be written, so that a message asks only for keys to read.
    """
    if "://" not in url:
        return LocalPlace(root=expanded(url))
    try:
        parts = urlsplit(url)
        _ = parts.port  # parsed only when it is asked for; raises ValueError
    except ValueError:  # not repeated: it may hold a secret
        raise ConfigError(f"the storage URL cannot be read; {_ADDRESSES}") from None
    if "@" in parts.netloc:
        # Not repeated: what stands before the @ is a secret.
        raise ConfigError("a storage URL holds credentials; leave them out and set them in the environment")
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return LocalPlace(root=Path(unquote(parts.path)))
    if parts.scheme not in ("s3", "gs") or not parts.netloc or parts.query or parts.fragment:
        raise ConfigError(f"{url!r} is not a storage address: {_ADDRESSES}")
    prefix, allow_http = parts.path.strip("/"), allows_http(environment)
    if parts.scheme == "gs":
        project = environment.get("GOOGLE_CLOUD_PROJECT") or None
        return GcsPlace(bucket=parts.netloc, prefix=prefix, project=project, allow_http=allow_http)
    if profile is not None:
        return S3Place(bucket=parts.netloc, prefix=prefix, profile=profile, allow_http=allow_http)
    names = s3_credentials(environment)
    return S3Place(
        bucket=parts.netloc,
        prefix=prefix,
        endpoint_url=s3_endpoint(environment),
        access_key_id=environment[names.key_id] if names else None,
        secret_access_key=environment[names.secret] if names else None,
        session_token=environment[names.session_token] if names and names.session_token else None,
        allow_http=allow_http,
        key_names=(names.key_id, names.secret) if names else names_to_set(environment, reads=reads),
    )


def names_to_set(environment: Mapping[str, str], *, reads: bool = False) -> tuple[str, str]:
    """The pair of variables to set if none is, of the kind that the environment already uses.

    If the account or the bucket of R2 is set, these are R2's keys; for a reader (`reads`), those to read.
    """
    if environment.get("R2_DATASET_ACCOUNT_ID") or environment.get("R2_DATASET_BUCKET_NAME"):
        return READ_PAIR if reads else WRITE_PAIR
    return AWS_PAIR


def server_between(source: StoreAddress, destination: StoreAddress) -> tuple[Store, str, str] | None:
    """A store that contains both places, with their prefixes in it, if its server can copy between them; else None."""
    if not isinstance(source, S3Place | GcsPlace) or not isinstance(destination, type(source)):
        return None
    # Equal but for the prefix: one bucket, one endpoint, one set of credentials.
    if replace(source, prefix="") != replace(destination, prefix=""):
        return None
    prefixes = [f"{place.prefix}/" if place.prefix else "" for place in (source, destination)]
    return replace(source, prefix="")(), prefixes[0], prefixes[1]


def consumer_lines(place: StoreAddress) -> list[str]:
    """The environment variables for a reader of this place, as a shell takes them, with the secrets to be filled in."""
    if isinstance(place, S3Place):
        endpoint = place.endpoint_url or ""
        account = endpoint.removeprefix("https://").removesuffix(".r2.cloudflarestorage.com")
        # a bucket in a jurisdiction has an endpoint of two names (`<id>.eu`), which is no account id (`s3_endpoint`)
        is_r2 = account.isalnum() and endpoint == f"https://{account}.r2.cloudflarestorage.com"
        reached = f"R2_DATASET_ACCOUNT_ID={account}" if is_r2 else f"DATAPREP_ENDPOINT_URL={endpoint}"
        return [
            f"DATAPREP_STORAGE={'r2' if endpoint else 's3'}",
            *([reached] if endpoint else []),
            f"R2_DATASET_BUCKET_NAME={place.bucket}",
            "R2_DATASET_READ_ACCESS_KEY_ID=",
            "R2_DATASET_READ_SECRET_ACCESS_KEY=",
            f"DATASET_BINS_PATH={place.prefix}",
        ]
    if isinstance(place, GcsPlace):
        return ["DATAPREP_STORAGE=gcs", f"DATAPREP_BUCKET={place.bucket}", f"DATAPREP_ROOT={place.prefix}"]
    return ["DATAPREP_STORAGE=local", f"DATAPREP_ROOT={quote(unquote(place.url.removeprefix('file://')))}"]
