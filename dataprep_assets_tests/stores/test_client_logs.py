"""What the clients of stores log at DEBUG holds no key and no signature."""

import logging

import pytest
from dagster_aws.s3 import S3Resource

from dataprep_assets.stores.s3_api import s3_client

SECRET, KEY_ID = "s3cret-of-the-store", "AKIDOFTHESTORE"


def test_a_request_and_a_signed_url_leave_nothing_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("dataprep_assets.somebody").debug("nothing")
    with caplog.at_level(logging.DEBUG):
        # nobody listens at port 9 of loopback: the request is signed, and refused
        client = s3_client(
            S3Resource(
                endpoint_url="http://127.0.0.1:9",
                region_name="auto",
                aws_access_key_id=KEY_ID,
                aws_secret_access_key=SECRET,
                aws_session_token="t0ken-of-the-session",
            )
        )
        url = client.generate_presigned_url("get_object", Params={"Bucket": "b", "Key": "k"})
        with pytest.raises(Exception, match=r"127\.0\.0\.1:9"):
            client.head_object(Bucket="b", Key="k")
        logging.getLogger("dataprep_assets.somebody").debug("heard at DEBUG")
    signature = url.rpartition("Signature=")[2][:20]
    assert signature
    assert "heard at DEBUG" in caplog.text
    for secret in (SECRET, KEY_ID, "t0ken-of-the-session", signature, "StringToSign", "Authorization"):
        assert secret not in caplog.text, secret
