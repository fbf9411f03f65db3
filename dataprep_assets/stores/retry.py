"""Retry policy of all network calls in this project: the retryable failures, the number of attempts and the pauses.

Entry points: :class:`RetryPolicy`, :class:`RetryableError` (raised for failures that may be temporary),
:class:`StoppedError` and :func:`parse_retry_after`.

The retries of boto3 (see `amazon.api` for the reasons), google-cloud-storage and huggingface_hub are switched off or
not used, because their attempts would multiply with this policy's. Only uploads to the Hub use its client's retries.
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
"""HTTP statuses that ask the client to wait or report a server problem; other error statuses are final."""

# Interval in seconds at which a waiting thread checks whether it was stopped.
_POLL_SECONDS = 0.05


class RetryableError(Exception):
    """Error for a failure that may be temporary.

    ``cause`` appears in the final error if all attempts fail. ``retry_after`` is the wait in seconds that the server
    requested, from :func:`parse_retry_after`.
    """

    def __init__(self, cause: str, retry_after: float | None = None) -> None:
        super().__init__(cause)
        self.cause = cause
        self.retry_after = retry_after


class StoppedError(TransferError):
    """Error for a stopped transfer. The reason is in another error or known to the caller."""


def parse_retry_after(value: str | None, *, now: float | None = None) -> float | None:
    """Return the seconds to wait according to a ``Retry-After`` header, or None if it is unreadable.

    The header contains seconds or an HTTP-date (RFC 9110, 10.2.3). ``now`` is in seconds since 1970. A date in the past
    gives 0.
    """
    if value is None or not value.strip():
        return None
    try:
        seconds = float(value)
    except ValueError:
        # Import this module only when it is needed, because few servers send a date and the import loads the mail
        # packages.
        import email.utils

        try:
            when = email.utils.parsedate_to_datetime(value)
        except ValueError:
            return None
        seconds = when.timestamp() - (time.time() if now is None else now)
    # float() also accepts `nan` and `inf`, so exclude them.
    if not math.isfinite(seconds):
        return None
    return max(0.0, seconds)


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Retry policy of a network call: the number of attempts and the waits between them.

    ``attempts`` includes the first one. The wait doubles from ``base_seconds`` up to ``max_seconds``, with jitter over
    its upper half. A server's Retry-After may exceed ``max_seconds``, but a value above ``max_retry_after`` ends the
    call immediately, because a transfer that sleeps for hours looks like one that hangs. ``sleep`` replaces the wait
    (for tests). The default wait ends early if the transfer is stopped.
    """

    # With the defaults, a call waits 32 to 64 s in total before it gives up: up to 0.5 s first, and then twice as long
    # each time, for seven waits.
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
        """Return the seconds to wait after the ``failures``-th failure in a row (counted from 1)."""
        # Cap the exponent, because 2.0**1024 overflows and any practical ceiling is below 2**64.
        ceiling = min(self.max_seconds, self.base_seconds * 2.0 ** min(failures - 1, 64))
        if retry_after is None:
            return random.uniform(ceiling / 2, ceiling)
        # Add jitter to the requested wait, because the server sends every worker the same value, and all workers would
        # otherwise retry at the same moment.
        return retry_after + random.uniform(0, self.base_seconds)

    def run(self, attempt: Callable[[], T], *, label: str, stopped: Callable[[], bool] = lambda: False) -> T:
        """Call ``attempt`` up to ``attempts`` times, until it raises no :class:`RetryableError`, and return its result.

        ``label`` names the call in messages. Raises StoppedError if ``stopped()`` is true after a wait, which ends
        early in that case. Raises TransferError with the label, the last cause and the number of attempts. Other errors
        are not caught.
        """
        for failures in range(1, self.attempts + 1):
            try:
                return attempt()
            except RetryableError as error:
                last_error = error
            if failures == self.attempts:
                break
            if last_error.retry_after is not None and last_error.retry_after > self.max_retry_after:
                raise TransferError(
                    f"{label}: {last_error.cause}. The server requires a wait of {last_error.retry_after:.0f} s, but "
                    f"at most {self.max_retry_after:.0f} s are allowed (attempt {failures} of {self.attempts}). Run "
                    "the command again later"
                ) from last_error
            self._wait(self.delay(failures, last_error.retry_after), stopped)
            if stopped():
                raise StoppedError(
                    f"{label}: stopped after {last_error.cause}. Run the command again to resume"
                ) from last_error
        raise TransferError(
            f"{label}: {last_error.cause} (gave up after {count_of(self.attempts, 'attempt')})"
        ) from last_error

    def _wait(self, seconds: float, stopped: Callable[[], bool]) -> None:
        if self.sleep is not None:
            self.sleep(seconds)
        else:
            until = time.monotonic() + seconds
            while not stopped() and (remaining := until - time.monotonic()) > 0:
                time.sleep(min(remaining, _POLL_SECONDS))
