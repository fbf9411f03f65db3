"""Configuration of S3 clients, and translation of their errors.

boto3's own retries are off, because `standard` mode does not retry 429 TooManyRequests, ignores Retry-After and
restarts a body from its beginning. Its default checksums are off as well, because R2 and older stores reject the
aws-chunked trailers that they are sent in (over TLS only).

Messages repeat only the status and the code of a response, because an error's text can contain key ids and signatures.

Entry points: :func:`build_s3_client_config`, :func:`create_s3_client`, :func:`translate_errors`, :class:`RefusedError`,
:func:`explain_refusal`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dataprep_assets.errors import ConfigError, DataprepError, SourceError
from dataprep_assets.stores.client_logs import keep_secrets_from_logs
from dataprep_assets.stores.endpoints import check_endpoint
from dataprep_assets.stores.retry import RETRY_STATUS, RetryableError, parse_retry_after
from dataprep_assets.stores.store import NEEDS_BOTO3, build_missing_object_error

if TYPE_CHECKING:
    from dataprep_assets.stores.connect import S3Address

keep_secrets_from_logs()

CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
# This is more than the number of connections that one store uses at a time (`s3.WORKERS`), because urllib3 closes
# connections beyond its pool's size, and later requests would have to open new ones.
CONNECTIONS = 32

# Retry by code, because some statuses mislead: RequestTimeout and BadDigest have 400. ConditionalRequestConflict and
# OperationAborted (409) mean that another request for the same key was in progress.
_RETRY_CODES = {
    "BadDigest",
    "ConditionalRequestConflict",
    "IncompleteBody",
    "InternalError",
    "OperationAborted",
    "RequestExpired",
    "RequestTimeTooSkewed",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "XAmzContentSHA256Mismatch",
}
# Retry these codes, because only one server's clock may be wrong, or a clock may be corrected in the meantime.
_CLOCK_CODES = {"RequestExpired", "RequestTimeTooSkewed"}


@dataclass(frozen=True, kw_only=True)
class CredentialNames:
    """Names of the environment variables with the credentials, for error messages."""

    key_id: str = "AWS_ACCESS_KEY_ID"
    secret: str = "AWS_SECRET_ACCESS_KEY"


class RefusedError(Exception):
    """A final refusal, which is not retried. `code` is the code in the response, or its status if there is none."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(f"HTTP {status}, {code}")
        self.status = status
        self.code = code


def build_s3_client_config(*, connect_seconds: float = CONNECT_SECONDS, read_seconds: float = READ_SECONDS) -> Any:
    """Return the `botocore.config.Config` that clients of :class:`~dataprep_assets.stores.amazon.s3.S3Store` must have.

    `connect_seconds` limits each connect. `read_seconds` limits each wait for bytes, in either direction, but not a
    whole request.

    Raises ConfigError if boto3 is not installed.
    """
    try:
        from botocore.config import Config
    except ImportError as error:
        raise ConfigError(NEEDS_BOTO3) from error
    return Config(
        connect_timeout=connect_seconds,
        read_timeout=read_seconds,
        retries={"total_max_attempts": 1, "mode": "standard"},
        max_pool_connections=CONNECTIONS,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        tcp_keepalive=True,
        # Do not sign payloads, because over plain HTTP boto3 would hash each body a second time, and this project
        # already sends a signed Content-MD5 of every body.
        s3={"payload_signing_enabled": False},
    )


def create_s3_client(place: "S3Address", config: Any = None) -> Any:
    """Return a low-level client for the bucket of `place`, with `config` or :func:`build_s3_client_config`.

    If an endpoint is set without a region, the region is `auto`, R2's only one. Raises ConfigError if boto3 is not
    installed or cannot create a client.
    """
    config = build_s3_client_config() if config is None else config
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ProfileNotFound

    if place.access == "anonymous":
        config = config.merge(Config(signature_version=UNSIGNED))

    endpoint = place.endpoint_url
    if endpoint is not None:
        check_endpoint(endpoint, "endpoint_url", allow_http=place.allow_http)
    try:
        session = _open_session(place.profile)
        region = place.region or session.get_config_variable("region") or ("auto" if endpoint is not None else None)
        client = session.create_client(
            "s3",
            region_name=region,
            endpoint_url=endpoint,
            aws_access_key_id=place.access_key_id,
            aws_secret_access_key=place.secret_access_key,
            aws_session_token=place.session_token,
            config=config,
        )
    except ProfileNotFound:
        raise ConfigError(
            f"unknown profile {place.profile!r} (AWS_PROFILE, --profile). Run `aws configure list-profiles` to list "
            "the available profiles"
        ) from None
    except (BotoCoreError, ValueError) as error:
        # Show only the error's type, because the error's text could contain the output of a credential process.
        raise ConfigError(
            f"boto3 cannot create a client ({type(error).__name__}). Check the endpoint, the region and the profile"
        ) from None
    # Check again, because the endpoint may come from boto3's own chain (AWS_ENDPOINT_URL or a profile).
    check_endpoint(client.meta.endpoint_url, "endpoint_url", allow_http=place.allow_http)
    if place.access == "requester_pays":
        client.meta.events.register("before-call.s3", _agree_to_pay)
    return client


def _agree_to_pay(params: Any, **_: Any) -> None:
    """Add the signed header that agrees to pay for a request."""
    params["headers"]["x-amz-request-payer"] = "requester"


def _open_session(profile: str | None) -> Any:
    """Return a new botocore session, because sessions are not safe to share.

    Only botocore's service descriptions are shared, because reading them takes six times as long as everything else.
    """
    import botocore.session

    session = botocore.session.Session(profile=profile)
    session.register_component("data_loader", _build_loader(session.get_config_variable("data_path")))
    return session


@lru_cache
def _build_loader(data_path: str | None) -> Any:
    from botocore.loaders import create_loader

    return create_loader(data_path)


def check_client(client: Any) -> None:
    """Raise ConfigError if the client uses boto3's own retries or checksums."""
    config = client.meta.config
    if (config.retries or {}).get("total_max_attempts") != 1 or (
        getattr(config, "request_checksum_calculation", None) != "when_required"
    ):
        raise ConfigError("the S3 client uses boto3's own retries or checksums. Create it with create_s3_client(place)")


def find_endpoint(client: Any) -> str:
    """Return the scheme, host and port of the store for messages."""
    parts = urlsplit(client.meta.endpoint_url)
    return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")


@contextmanager
def translate_errors(label: str, endpoint: str, names: CredentialNames) -> Iterator[None]:
    """Translate botocore's errors into RetryableError, RefusedError, or a ConfigError with the remedy.

    `label` names the object in messages, `endpoint` the server, and `names` the variables to check. The cause is not
    chained, because its text comes from the store or a credential provider and may contain a secret.
    """
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        ConnectTimeoutError,
        EndpointConnectionError,
        HTTPClientError,
        IncompleteReadError,
        SSLError,
    )
    from botocore.exceptions import ConnectionError as BotoConnectionError
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ClientError as error:
        raise _from_response(error.response) from None
    # Specific classes come first, because later ones include their base classes.
    except (ConnectTimeoutError, EndpointConnectionError) as error:
        raise RetryableError(
            f"cannot connect to {endpoint} ({type(error).__name__}); check the endpoint and the network"
        ) from None
    except SSLError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise ConfigError(
                f"{label}: the certificate of {endpoint} is not trusted. Correct the endpoint, or set AWS_CA_BUNDLE "
                "to your authority's certificates"
            ) from None
        raise RetryableError(f"the TLS connection to {endpoint} broke") from None
    except (
        HTTPClientError,
        BotoConnectionError,
        IncompleteReadError,
        HTTPError,
        ConnectionError,
        TimeoutError,
    ) as error:
        raise RetryableError(f"the connection to {endpoint} broke ({type(error).__name__})") from None
    except ResponseParserError:
        raise RetryableError(f"the response of {endpoint} is not an S3 response") from None
    except BotoCoreError as error:
        raise ConfigError(
            f"{label}: boto3 cannot sign or send the request ({type(error).__name__}). Set {names.key_id} and "
            f"{names.secret}, and check the endpoint and region. For a source in a public bucket, set `access: "
            "anonymous`"
        ) from None


def _from_response(response: Mapping[str, Any]) -> Exception:
    meta = response.get("ResponseMetadata", {})
    status = int(meta.get("HTTPStatusCode", 0))
    code = str(response.get("Error", {}).get("Code", "")) or str(status)
    if status in RETRY_STATUS or code in _RETRY_CODES:
        wait = parse_retry_after(meta.get("HTTPHeaders", {}).get("retry-after"))
        clock = (
            ": the clock of this machine differs from the store's. Set the clock, for example with NTP"
            if code in _CLOCK_CODES
            else ""
        )
        return RetryableError(f"HTTP {status}, {code}{clock}", wait)
    return RefusedError(status, code)


def explain_refusal(
    error: RefusedError, *, label: str, bucket: str, endpoint: str, names: CredentialNames
) -> DataprepError:
    """Return the error for a refusal, with its meaning and the remedy.

    `label` names the object in messages, `bucket` and `endpoint` the requested location, and `names` the variables to
    check.
    """
    code, status = error.code, error.status
    prefix = f"{label}: {endpoint} refused the request ({error})"
    if code == "InvalidAccessKeyId":
        return ConfigError(f"{prefix}: unknown access key ID. Check {names.key_id} and the endpoint")
    if code == "SignatureDoesNotMatch":
        return ConfigError(
            f"{prefix}: the secret does not match the access key ID. Check {names.secret}, and remove surrounding "
            "spaces"
        )
    if code in ("ExpiredToken", "InvalidToken", "TokenRefreshRequired"):
        return ConfigError(f"{prefix}: the session token has expired. Create new credentials")
    if code in (
        "PermanentRedirect",
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
    ) or status in (
        301,
        307,
    ):
        return ConfigError(
            f"{prefix}: wrong region or endpoint for bucket {bucket}. Correct them. On R2, the region is `auto`"
        )
    if code == "NoSuchBucket":
        return ConfigError(f"{prefix}: bucket {bucket} does not exist. Check the bucket's name and the endpoint")
    if status in (401, 403):
        return ConfigError(
            f"{prefix}: these credentials lack the permission. Check {names.key_id}, {names.secret} and the token's "
            f"permissions for bucket {bucket} (R2: Object Read, or Object Read & Write). For a source in a public "
            "bucket, set `access: anonymous`; in a requester-pays bucket, `access: requester_pays`"
        )
    if status == 404:
        return build_missing_object_error(prefix)
    if status == 501 or code == "NotImplemented":
        return ConfigError(f"{prefix}: this store does not support the request. Use AWS S3, R2 or MinIO")
    if code in ("QuotaExceeded", "EntityTooLarge", "XMinioStorageFull"):
        return SourceError(f"{prefix}: the store is full. Free space, or raise the quota")
    return SourceError(f"{prefix}. Check the bucket, endpoint and region")
