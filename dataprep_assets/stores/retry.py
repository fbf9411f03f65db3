"""How every network call of this project is retried: after which failures, how often, with which pauses.

Entry points: :class:`RetryPolicy`, :class:`RetryableError` (raised by what may succeed on another try),
:class:`StoppedError` and :func:`parse_retry_after`.

boto3's own retries are switched off (`s3_api` says why), google-cloud-storage's and huggingface_hub's are not used:
attempts of theirs would multiply with these.
"""

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from dataprep_assets.errors import ConfigError, TransferError, count_of

T = TypeVar("T")

RETRY_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses of HTTP answers that ask to wait, or are a problem of the server; other refusals are definite."""

# How often a waiting thread checks whether it was stopped, in seconds.
_POLL_SECONDS = 0.05


class RetryableError(Exception):
    """A failure that may be temporary.

    ``cause`` is what the final error says when all attempts have failed; ``retry_after`` is how many seconds the server
    asks to wait, from :func:`parse_retry_after`.
    """

    def __init__(self, cause: str, retry_after: float | None = None) -> None:
        super().__init__(cause)
        self.cause = cause
        self.retry_after = retry_after


class StoppedError(TransferError):
    """The transfer was stopped; another error, or the caller, says why."""


def parse_retry_after(value: str | None, *, now: float | None = None) -> float | None:
    """Seconds to wait for a ``Retry-After`` header (RFC 9110, 10.2.3: delay-seconds or HTTP-date); None if unreadable.

    ``now`` is in seconds since 1970. A date in the past gives 0.
    """
    if value is None or not value.strip():
        return None
    try:
        seconds = float(value)
    except ValueError:
        # few answers have a date, and parsing one takes libraries of mail
        import email.utils

        try:
            when = email.utils.parsedate_to_datetime(value)
        except ValueError:
            return None
        seconds = when.timestamp() - (time.time() if now is None else now)
    # float() reads `nan` and `inf`, too.
    if not math.isfinite(seconds):
        return None
    return max(0.0, seconds)


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often and how patiently a network call is tried again.

    ``attempts`` counts the first try. The wait doubles from ``base_seconds`` up to ``max_seconds`` and is jittered over
    its upper half. A server's Retry-After is obeyed even beyond ``max_seconds``; one beyond ``max_retry_after`` ends
    the call at once, because a transfer that sleeps for hours looks like one that hangs. ``sleep`` replaces the wait
    (for tests); by default a wait ends early when the transfer is stopped.
    """

    # By default a call waits half a minute to a minute in all before it gives up: 0.5 s, doubled six times.
    attempts: int = 8
    base_seconds: float = 0.5
    max_seconds: float = 60.0
    max_retry_after: float = 900.0
    sleep: Callable[[float], None] | None = None

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigError(f"RetryPolicy: attempts must be at least 1, not {self.attempts}")
        if self.base_seconds < 0 or self.max_seconds < self.base_seconds:
            raise ConfigError(
                f"RetryPolicy: must satisfy 0 <= base_seconds ({self.base_seconds}) <= max_seconds ({self.max_seconds})"
            )

    def delay(self, failures: int, retry_after: float | None) -> float:
        """Seconds to wait after the ``failures``-th failure in a row (counted from 1)."""
        # The exponent is capped because 2.0**1024 overflows and no ceiling needs more than 2**64.
        ceiling = min(self.max_seconds, self.base_seconds * 2.0 ** min(failures - 1, 64))
        if retry_after is None:
            return random.uniform(ceiling / 2, ceiling)
        # Never earlier than asked; spread out, because every worker was given the same time.
        return retry_after + random.uniform(0, self.base_seconds)

    def run(self, attempt: Callable[[], T], *, label: str, stopped: Callable[[], bool] = lambda: False) -> T:
        """Call ``attempt`` until it returns; again after each :class:`RetryableError`, at most ``attempts`` times.

        ``label`` names the call in messages; a wait ends early once ``stopped()`` is true, with StoppedError. Raises
        TransferError with the label, the last cause and the attempts made. Any other error passes through.
        """
        for failures in range(1, self.attempts + 1):
            try:
                return attempt()
            except RetryableError as error:
                last = error
            if failures == self.attempts:
                break
            if last.retry_after is not None and last.retry_after > self.max_retry_after:
                raise TransferError(
                    f"{label}: {last.cause}. The server asks to wait {last.retry_after:.0f} s, but at most "
                    f"{self.max_retry_after:.0f} s are allowed (attempt {failures} of {self.attempts}). Run again "
                    "later"
                ) from last
            self._wait(self.delay(failures, last.retry_after), stopped)
            if stopped():
                raise StoppedError(f"{label}: stopped after {last.cause}. Run again to resume") from last
        raise TransferError(f"{label}: {last.cause} (gave up after {count_of(self.attempts, 'attempt')})") from last

    def _wait(self, seconds: float, stopped: Callable[[], bool]) -> None:
        if self.sleep is not None:
            self.sleep(seconds)
        else:
            until = time.monotonic() + seconds
            while not stopped() and (left := until - time.monotonic()) > 0:
                time.sleep(min(left, _POLL_SECONDS))
