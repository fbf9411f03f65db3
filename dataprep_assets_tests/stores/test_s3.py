"""The contract on real S3 servers, and faults that only S3 can have."""

import http.server
import subprocess
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import boto3
import pytest
from botocore.exceptions import BotoCoreError, ClientError

from dataprep_assets.errors import ConfigError, DataprepError
from dataprep_assets.stores.amazon.api import CredentialNames, create_s3_client
from dataprep_assets.stores.amazon.s3 import S3Store
from dataprep_assets.stores.connect import Access, S3Address, parse_place
from dataprep_assets_tests.fakes.buckets import PART_BYTES, QUICK, make_place, new_bucket, new_client, new_store
from dataprep_assets_tests.fakes.fault_proxy import FaultProxy
from dataprep_assets_tests.fakes.nobody import refused_url
from dataprep_assets_tests.fakes.swift_server import KEY_ID, SECRET, SwiftServer
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.stores.contract import StoreContract, content, sha256


class TestOnSwift(StoreContract):
    part_bytes = PART_BYTES

    @pytest.fixture
    def store(self, swift: SwiftServer) -> Iterator[S3Store]:
        # Let the proxy send one PUT at a time, because the races need a server with atomic conditional writes.
        with FaultProxy(swift.url, one_put_at_a_time=True) as proxy:
            yield new_store(proxy.url, new_bucket(swift.url), "below/a prefix")

    def test_if_version_exchanges_exactly_that_version(self, store: S3Store) -> None:
        version = store.put("key", b"first").version
        with raises(ConfigError, "AWS S3", "R2", "MinIO"):
            store.put("key", b"second", if_version=version)

    def test_of_many_who_race_for_an_exchange_one_wins(self, store: S3Store) -> None:
        pytest.skip("Swift refuses If-Match on a PUT; moto runs this one")


class TestOnMoto(StoreContract):
    part_bytes = PART_BYTES

    @pytest.fixture
    def store(self, moto: str) -> Iterator[S3Store]:
        with FaultProxy(moto, one_put_at_a_time=True) as proxy:
            yield new_store(proxy.url, new_bucket(moto))


def test_an_object_has_the_type_that_browsers_need(moto: str) -> None:
    bucket = new_bucket(moto)
    new_store(moto, bucket).put("index.html", b"<p>", content_type="text/html")
    assert new_client(moto).head_object(Bucket=bucket, Key="index.html")["ContentType"] == "text/html"


# --- refusals name the cause and the remedy, but no secret


class Caught:
    def __init__(self, error: BaseException) -> None:
        self.text = "".join(traceback.format_exception(error))
        self.message = str(error)


def refusal(use: Callable[[], object]) -> Caught:
    with pytest.raises(DataprepError) as caught:
        use()
    return Caught(caught.value)


def test_wrong_credentials_name_the_variable_and_no_secret(swift: SwiftServer) -> None:
    bucket = new_bucket(swift.url)
    names = CredentialNames(key_id="R2_KEY_ID", secret="R2_SECRET")
    client = new_client(swift.url, secret="the-wrong-secret")
    store = S3Store(client, bucket, retry=QUICK, credentials=names)
    for use in (lambda: store.head("key"), lambda: store.put("key", b"x"), lambda: [*store.list()]):
        caught = refusal(use)
        assert "R2_SECRET" in caught.message
        assert "SignatureDoesNotMatch" in caught.message
        assert "the-wrong-secret" not in caught.text
        assert KEY_ID not in caught.text
    assert "wrong" not in repr(store)


@pytest.mark.parametrize(
    ("status", "code", "hint"),
    [
        (403, "InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
        (403, "AccessDenied", "(R2: Object Read, or Object Read & Write)"),
        (301, "PermanentRedirect", "region"),
        (400, "AuthorizationHeaderMalformed", "region"),
        (400, "ExpiredToken", "new credentials"),
        (501, "NotImplemented", "does not support the request"),
    ],
)
def test_every_refusal_names_the_remedy(swift: SwiftServer, status: int, code: str, hint: str) -> None:
    def before(operation: str, target: str) -> tuple[int, str] | None:
        # boto3 requests the bucket's region by itself, and would loop forever if that request were redirected too.
        return None if target == "/bucket" else (status, code)

    with FaultProxy(swift.url, before=before) as proxy:
        store = new_store(proxy.url, "bucket")
        for use in (lambda: store.put("key", b"x"), lambda: store.head("key"), lambda: [*store.list()]):
            caught = refusal(use)
            assert hint in caught.message
            assert "AKIA" not in caught.text


def test_a_wrong_clock_is_retried_and_then_named(swift: SwiftServer) -> None:
    bucket, left = new_bucket(swift.url), [1]

    def before(operation: str, target: str) -> tuple[int, str] | None:
        left[0] -= 1
        return (403, "RequestTimeTooSkewed") if left[0] >= 0 else None

    with FaultProxy(swift.url, before=before) as proxy:
        store = new_store(proxy.url, bucket)
        store.put("key", b"x")
        for use in (lambda: store.head("key"), lambda: [*store.list()], lambda: [*store.read("key")]):
            left[0] = 1
            assert use()
        left[0] = 1_000
        assert "clock" in refusal(lambda: store.put("key", b"x")).message
        assert "clock" in refusal(lambda: store.head("key")).message


def test_a_key_that_ends_with_a_slash_is_listed_if_it_has_bytes(swift: SwiftServer) -> None:
    bucket = new_bucket(swift.url)
    store = new_store(swift.url, bucket)
    client = new_client(swift.url)
    for key, body in (("marker/", b""), ("data/", b"bytes"), ("data/file", b"x")):
        client.put_object(Bucket=bucket, Key=key, Body=body)
    assert [(info.key, info.bytes) for info in store.list()] == [("data/", 5), ("data/file", 1)]


class EmptyPages(http.server.BaseHTTPRequestHandler):
    """A store with an endless listing of empty pages; it records the headers of requests."""

    seen: ClassVar[list[dict[str, str]]] = []

    def do_GET(self) -> None:
        self.seen.append({name.lower(): value for name, value in self.headers.items()})
        token = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{len(self.seen)}</NextContinuationToken>"
        body = f'<?xml version="1.0"?><ListBucketResult><Name>b</Name>{token}</ListBucketResult>'.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@contextmanager
def empty_pages() -> Iterator[str]:
    EmptyPages.seen.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), EmptyPages) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_listing_of_empty_pages_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataprep_assets.stores.amazon.bucket._EMPTY_PAGES", 20)
    with empty_pages() as url:
        assert "empty pages" in refusal(lambda: [*new_store(url, "bucket").list()]).message
    assert len(EmptyPages.seen) == 21


def test_requests_are_anonymous_requester_pays_or_use_a_session_token_as_declared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dataprep_assets.stores.amazon.bucket._EMPTY_PAGES", 0)
    keys = {"R2_DATASET_READ_ACCESS_KEY_ID": "id", "R2_DATASET_READ_SECRET_ACCESS_KEY": "secret"}
    token = {"R2_DATASET_READ_SESSION_TOKEN": "token"}

    def headers(environment: dict[str, str], access: Access) -> dict[str, str]:
        place = parse_place("s3://bucket", {**environment, "DATAPREP_ENDPOINT_URL": url})
        assert isinstance(place, S3Address)
        refusal(lambda: [*replace(place, access=access)().list()])
        return EmptyPages.seen[-1]

    with empty_pages() as url:
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        assert "authorization" not in headers({}, "anonymous")
        assert "authorization" not in headers(keys | token, "anonymous")
        paid = headers(keys, "requester_pays")
        assert paid["x-amz-request-payer"] == "requester"
        assert "x-amz-request-payer" in paid["authorization"]
        assert headers(keys | token, "keys")["x-amz-security-token"] == "token"
        assert "x-amz-security-token" not in headers(keys, "keys")


def test_a_missing_bucket_is_not_an_empty_one(swift: SwiftServer) -> None:
    store = new_store(swift.url, "no-such-bucket")
    for use in (
        lambda: store.head("key"),
        lambda: [*store.list()],
        lambda: [*store.read("key")],
        lambda: store.put("key", b"x"),
        lambda: store.put("key", b"x", if_absent=True),
        lambda: store.sweep(),
    ):
        assert_names(refusal(use).message, "no-such-bucket")


def test_an_unreachable_endpoint_is_named() -> None:
    with refused_url() as url:
        caught = refusal(lambda: new_store(url, "bucket").head("key"))
    assert f"cannot connect to {url}" in caught.message


def test_a_client_with_its_own_retries_or_checksums_is_refused(swift: SwiftServer) -> None:
    plain = boto3.client("s3", endpoint_url=swift.url, aws_access_key_id="a", aws_secret_access_key="b")
    with raises(ConfigError, "create_s3_client"):
        S3Store(plain, "bucket")


def test_credentials_in_an_endpoint_are_refused_and_not_quoted() -> None:
    word = uuid.uuid4().hex
    caught = refusal(lambda: create_s3_client(make_place(f"http://user:{word}@127.0.0.1:1")))
    assert word not in caught.text


def test_a_resource_of_dagster_aws_creates_the_client(swift: SwiftServer) -> None:
    dagster_s3 = pytest.importorskip("dagster_aws.s3", reason="no dagster-aws: pip install 'dataprep-assets[r2]'")
    resource = dagster_s3.S3Resource(endpoint_url=swift.url, aws_access_key_id=KEY_ID, aws_secret_access_key=SECRET)
    from dataprep_assets.resources.r2 import R2StorageResource

    bucket = new_bucket(swift.url)
    place = R2StorageResource(s3=resource, bucket=bucket).address()
    assert isinstance(place, S3Address)
    assert create_s3_client(place).meta.region_name == "auto"
    place().put("key", b"x")
    with raises(ConfigError, "create_s3_client"):
        S3Store(resource.get_client(), bucket)


# --- TLS, with which botocore sends checksums as trailers


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("tls")
    files = (str(folder / "cert.pem"), str(folder / "key.pem"))
    made = subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=127.0.0.1",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-out",
            files[0],
            "-keyout",
            files[1],
        ],
        capture_output=True,
    )
    if made.returncode:
        pytest.skip("openssl cannot make a certificate here")
    return files


def test_over_tls_there_are_no_trailers(
    swift: SwiftServer, certificate: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", certificate[0])
    bucket, data = new_bucket(swift.url), content(PART_BYTES + 1000)
    path = tmp_path / "file"
    path.write_bytes(data)
    with FaultProxy(swift.url, certificate=certificate) as proxy:
        client = new_client(proxy.url)
        store = S3Store(client, bucket, retry=QUICK, part_bytes=PART_BYTES)
        store.upload(path, "key", sha256=sha256(data))
        store.put("small", b"x")
        store.download("key", tmp_path / "target", sha256=sha256(data))
        assert (tmp_path / "target").read_bytes() == data
        assert not [seen for seen in proxy.seen if is_trailed(seen.headers)]
        # Send the same requests without our configuration, to show that the test can fail.
        plain = boto3.client(
            "s3",
            endpoint_url=proxy.url,
            verify=certificate[0],
            region_name="us-east-1",
            aws_access_key_id=KEY_ID,
            aws_secret_access_key=SECRET,
        )
        with suppress(BotoCoreError, ClientError):
            plain.put_object(Bucket=bucket, Key="trailed", Body=BytesIO(b"x"))
        assert [seen for seen in proxy.seen if is_trailed(seen.headers)]


def is_trailed(headers: dict[str, str]) -> bool:
    names = {name.lower() for name in headers}
    encoding = {name.lower(): value for name, value in headers.items()}.get("content-encoding", "")
    return bool(names & {"x-amz-trailer", "x-amz-sdk-checksum-algorithm"}) or "aws-chunked" in encoding


def test_an_untrusted_certificate_is_reported_at_once(swift: SwiftServer, certificate: tuple[str, str]) -> None:
    with FaultProxy(swift.url, certificate=certificate) as proxy:
        caught = refusal(lambda: S3Store(new_client(proxy.url), "bucket").head("key"))
        assert "certificate" in caught.message


# --- listings and copies


def test_unfinished_uploads_on_several_pages_are_all_swept(swift: SwiftServer) -> None:
    bucket = new_bucket(swift.url)
    client, paged = new_client(swift.url), new_client(swift.url)
    asked = []

    # Limit the pages, because Swift's own pages have a thousand entries. Do not use moto, whose listing never ends.
    def of_ten(params: dict[str, Any], **_: Any) -> None:
        asked.append(params)
        params["MaxUploads"] = 10

    paged.meta.events.register("provide-client-params.s3.ListMultipartUploads", of_ten)
    for number in range(25):
        client.create_multipart_upload(Bucket=bucket, Key=f"k/{number:04d}")
    assert S3Store(paged, bucket).sweep("k/") == 25
    assert len(asked) >= 3
    assert not client.list_multipart_uploads(Bucket=bucket).get("Uploads")


def test_a_copy_above_the_limit_of_one_request_is_done_in_parts(swift: SwiftServer) -> None:
    bucket = new_bucket(swift.url)
    data = content(2 * PART_BYTES + 77)
    with FaultProxy(swift.url) as proxy:
        store = new_store(proxy.url, bucket, copy_bytes=PART_BYTES)
        source = store.put("source", data)
        copied = store.copy("source", "target")
        assert (proxy.count("part_copy"), proxy.count("copy")) == (3, 0)
        assert (copied.sha256, copied.bytes) == (source.sha256, len(data))
    assert b"".join(store_of(swift, bucket).read("target")) == data


def store_of(swift: SwiftServer, bucket: str) -> S3Store:
    return new_store(swift.url, bucket)
