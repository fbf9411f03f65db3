"""Tests of the retry policy: delays, delays requested by a server, budgets and impossible policies."""

import email.utils

import pytest

from dataprep_assets.errors import ConfigError, TransferError
from dataprep_assets.stores.retry import RetryableError, RetryPolicy, parse_retry_after
from dataprep_assets_tests.messages import raises


def test_the_delay_doubles_has_a_maximum_and_jitter_and_obeys_the_server() -> None:
    policy = RetryPolicy(base_seconds=1, max_seconds=10)
    for failures, ceiling in [(1, 1), (2, 2), (4, 8), (5, 10), (5000, 10)]:
        waits = {policy.delay(failures, None) for _ in range(50)}
        assert len(waits) > 40
        assert ceiling / 2 <= min(waits) <= max(waits) <= ceiling
    assert 30 <= policy.delay(1, 30.0) <= 31


def test_the_delay_requested_by_the_server_is_used() -> None:
    slept: list[float] = []
    answers = iter([RetryableError("HTTP 429", 7.0), RetryableError("HTTP 503")])

    def attempt() -> str:
        for error in answers:
            raise error
        return "done"

    policy = RetryPolicy(base_seconds=0.5, sleep=slept.append)
    assert policy.run(attempt, label="x") == "done"
    assert 7 <= slept[0] <= 7.5
    assert 0.5 <= slept[1] <= 1


def test_a_requested_delay_of_hours_is_refused() -> None:
    def attempt() -> None:
        raise RetryableError("HTTP 429", 7200.0)

    with raises(TransferError, "x", 429, 7200):
        RetryPolicy().run(attempt, label="x")


def test_retry_after_is_parsed_in_both_forms() -> None:
    now = 1_700_000_000.0
    assert parse_retry_after("120") == 120
    assert parse_retry_after(email.utils.formatdate(now + 90, usegmt=True), now=now) == 90
    assert parse_retry_after(email.utils.formatdate(now - 90, usegmt=True), now=now) == 0
    for unreadable in (None, "", "soon", "nan", "inf"):
        assert parse_retry_after(unreadable) is None


@pytest.mark.parametrize("bad", [{"attempts": 0}, {"base_seconds": -1.0}, {"max_seconds": 0.1}], ids=str)
def test_an_impossible_policy_is_refused(bad: dict[str, float]) -> None:
    with raises(ConfigError, next(iter(bad))):
        RetryPolicy(**bad)  # type: ignore[arg-type]
