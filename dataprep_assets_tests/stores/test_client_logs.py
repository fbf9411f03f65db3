"""DEBUG logs of the stores' clients contain no key and no signature."""

import logging
import traceback
from pathlib import Path

import pytest
from botocore.exceptions import EndpointConnectionError

from dataprep_assets.errors import DataprepError
from dataprep_assets.stores.amazon.api import create_s3_client
from dataprep_assets.stores.connect import S3Address
from dataprep_assets.stores.retry import RetryPolicy
from dataprep_assets_tests.fakes.gcs_server import GcsServer
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.stores.contract import sha256

SECRET, KEY_ID = "s3cret-of-the-store", "AKIDOFTHESTORE"


def test_a_request_and_a_signed_url_leave_no_secret_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("dataprep_assets.somebody").debug("nothing")
    with caplog.at_level(logging.DEBUG):
        # No server listens on port 9 of the loopback address, so the request is signed and then refused.
        client = create_s3_client(
            S3Address(
                bucket="b",
                endpoint_url="http://127.0.0.1:9",
                region="auto",
                access_key_id=KEY_ID,
                secret_access_key=SECRET,
                session_token="t0ken-of-the-session",
            )
        )
        url = client.generate_presigned_url("get_object", Params={"Bucket": "b", "Key": "k"})
        with raises(EndpointConnectionError, "127.0.0.1:9"):
            client.head_object(Bucket="b", Key="k")
        logging.getLogger("dataprep_assets.somebody").debug("heard at DEBUG")
    signature = url.rpartition("Signature=")[2][:20]
    assert signature
    assert "heard at DEBUG" in caplog.text
    for secret in (SECRET, KEY_ID, "t0ken-of-the-session", signature, "StringToSign", "Authorization"):
        assert secret not in caplog.text, secret


def test_a_google_token_and_upload_leave_no_secret_in_log_or_exception_chain(
    server: GcsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    storage = pytest.importorskip("google.cloud.storage", reason="needs the extra `gcs`")
    from google.oauth2.credentials import Credentials

    from dataprep_assets.stores.gcs import GcsStore

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
    data = b"x" * 700_000
    (tmp_path / "file").write_bytes(data)
    with caplog.at_level(logging.DEBUG):
        client = storage.Client(project="project", credentials=Credentials(token="t0ken-of-google"))
        store = GcsStore(client, "bucket", retry=RetryPolicy(attempts=1), part_bytes=256 << 10)
        store.upload(tmp_path / "file", "key", sha256=sha256(data))
        store.download("key", tmp_path / "again")
        server.fail("get", "status", times=None)
        with pytest.raises(DataprepError) as caught:
            store.head("key")
        logging.getLogger("dataprep_assets.somebody").debug("heard at DEBUG")
    assert "heard at DEBUG" in caplog.text
    for text in (caplog.text, "".join(traceback.format_exception(caught.value))):
        for secret in ("t0ken-of-google", "Authorization", "upload_id="):
            assert secret not in text, secret
