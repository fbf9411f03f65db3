"""Tests of one file on the hub: faults are survived or reported with its name, and secrets are never shown."""

import email.utils
import importlib
import logging
import time
import traceback
from pathlib import Path

import pytest
from huggingface_hub.errors import HfHubHTTPError

from dataprep_assets.errors import CorruptSourceError, SourceError, TransferError
from dataprep_assets.sources.hub import translate_errors
from dataprep_assets.stores.retry import RetryableError, RetryPolicy
from dataprep_assets_tests.fakes.hub_server import HubServer, Kind
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.sources.hub_mirror import (
    BIG,
    SMALL,
    TREE,
    etag,
    everything,
    mirror,
    repo,
)


@pytest.mark.parametrize(
    ("method", "name"),
    [("GET", "revision"), ("GET", "tree"), ("HEAD", BIG), ("GET", BIG), ("HEAD", SMALL), ("GET", SMALL)],
)
@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_waited_for(hub: HubServer, tmp_path: Path, method: str, name: str, status: int) -> None:
    hub.fail(name, "status", method=method, status=status, retry_after="0", times=2)
    mirror(hub, tmp_path)
    assert hub.unspent() == []


@pytest.mark.parametrize("form", ["seconds", "date", "quota"])
def test_retry_after_is_obeyed_for_listing_and_bytes(hub: HubServer, tmp_path: Path, form: str) -> None:
    slept: list[float] = []
    date = email.utils.formatdate(time.time() + 40, usegmt=True)
    wish = {"seconds": "40", "date": date, "quota": '"api";r=0;t=40'}[form]
    for name in ("revision", "tree", BIG):
        hub.fail(name, "status", status=429, retry_after=wish)
    mirror(hub, tmp_path, retry=RetryPolicy(base_seconds=0.5, sleep=slept.append))
    assert len(slept) == 3
    assert all(30 <= seconds <= 40.5 for seconds in slept)


@pytest.mark.parametrize("kind", ["reset", "truncate", "short", "flip"])
@pytest.mark.parametrize(("name", "first"), [(BIG, 1), (BIG, 3), (BIG, 6), (SMALL, 1)])
def test_a_fault_in_the_bytes_is_survived(hub: HubServer, tmp_path: Path, kind: Kind, name: str, first: int) -> None:
    hub.fail(name, kind, first=first)
    mirror(hub, tmp_path)
    assert hub.unspent() == []


def test_a_silent_server_is_timed_out_and_the_request_retried(hub: HubServer, tmp_path: Path) -> None:
    hub.fail(BIG, "stall", first=2)
    start = time.monotonic()
    mirror(hub, tmp_path, timeout_seconds=1.0)
    assert hub.unspent() == []
    # A stall lasts ten seconds, so a shorter time shows that the client did not wait for its end.
    assert time.monotonic() - start < 9


@pytest.mark.parametrize("kind", ["status", "reset", "truncate", "short"])
def test_a_persistent_fault_is_reported_with_the_file_s_name_and_leaves_no_partial_file(
    hub: HubServer, tmp_path: Path, kind: Kind
) -> None:
    hub.fail(BIG, kind, times=None)
    with raises(TransferError, BIG, f"org/data@{hub.commit}", 4):
        mirror(hub, tmp_path)
    base = tmp_path / "datasets--org--data"
    assert not (base / "snapshots" / hub.commit / BIG).exists()
    assert not (base / "refs").exists()
    hub.heal()
    mirror(hub, tmp_path)


def test_persistent_wrong_bytes_are_reported_as_corrupt_and_never_stored(hub: HubServer, tmp_path: Path) -> None:
    hub.fail(BIG, "flip", times=None)
    with raises(CorruptSourceError, BIG, f"org/data@{hub.commit}", etag(BIG)):
        mirror(hub, tmp_path)
    assert not [name for name in everything(tmp_path) if etag(BIG) in name]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_missing_file_is_reported_at_once(hub: HubServer, tmp_path: Path, method: str) -> None:
    hub.fail(BIG, "missing", method=method, times=None)
    with raises(SourceError, BIG, f"org/data@{hub.commit}", 404) as caught:
        mirror(hub, tmp_path, workers=1)
    assert not isinstance(caught.value, TransferError)
    assert hub.count(BIG, method) == 1
    assert not [name for name in everything(tmp_path) if ".part" in name]


def test_the_token_is_sent_to_the_hub_and_never_to_the_storage_host(tmp_path: Path) -> None:
    with HubServer(TREE, storage_host=True) as hub:
        hub.fail(BIG, "expired", method="GET")
        source = repo(hub, tmp_path, token="hf_secret")
        assert "hf_secret" not in repr(source)
        mirror(hub, tmp_path, token="hf_secret")
        assert {entry.authorization for entry in hub.log if entry.storage} == {None}
        assert {entry.authorization for entry in hub.log if not entry.storage} == {"Bearer hf_secret"}
        # The refused storage URL caused exactly one more HEAD request.
        assert hub.count(BIG, "HEAD") == 2


def test_failed_attempts_at_the_storage_host_do_not_reveal_the_signature(tmp_path: Path) -> None:
    with HubServer(TREE, storage_host=True) as hub:
        hub.fail(BIG, "status", times=None)
        with raises(TransferError, BIG) as caught:
            mirror(hub, tmp_path)
        assert "signature" not in str(caught.value)


def test_no_exception_chain_or_log_contains_a_signed_url(caplog: pytest.LogCaptureFixture) -> None:
    # Derive the HTTP library from the error's base class, because the library depends on the version of
    # huggingface_hub.
    http = importlib.import_module(HfHubHTTPError.__bases__[0].__module__.partition(".")[0])
    signed = "https://store.example/a/b?X-Signature=s3cret&Expires=1"
    refused = http.Response(403, request=http.Request("GET", signed))
    for error in (
        http.ConnectError(f"cannot reach {signed}"),
        HfHubHTTPError(f"403 for {signed}", response=refused),
    ):
        with pytest.raises((RetryableError, SourceError)) as caught, translate_errors("a"):
            raise error
        assert "s3cret" not in "".join(traceback.format_exception(caught.value))
    with caplog.at_level(logging.DEBUG):
        logging.getLogger(http.__name__).info('HTTP Request: %s %s "%s"', "GET", signed, "200 OK")
        logging.getLogger("huggingface_hub.utils._http").warning("thrown while requesting GET %s", signed)
        logging.getLogger(http.__name__.replace("httpx", "httpcore") + ".http11").debug("headers: Location %s", signed)
    assert 'GET https://store.example/a/b?... "200 OK"' in caplog.text
    assert "s3cret" not in caplog.text
