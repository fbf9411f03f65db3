"""The YAML key `automation`: automatic actions for a dataset. Each key that is present switches on its action.

This module does not import Dagster. `orchestration.sensors.automation` turns the keys into sensors, schedules and
checks, and validates cron expressions with Dagster's own parser.
"""

import os
import re
from datetime import timedelta
from typing import Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, field_validator, model_validator

from dataprep_assets.engine.yaml.declared_model import Declared
from dataprep_assets.errors import ConfigError

SHORTEST_INTERVAL = 5
"""Minimum seconds between two polls of a source, because Dagster's daemon does not evaluate sensors more often."""
SHORTEST_WINDOW = 60
"""Shortest freshness window in seconds: Dagster's own lower limit."""

_DURATION = re.compile(r"([1-9]\d{0,5})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
DURATIONS = "a number and `s`, `m`, `h` or `d`, such as 10m, 36h, 2d"
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
_ADDRESS = re.compile(r"[^@\s]+@[^@\s]+")


def seconds_of(duration: str) -> int | None:
    """Return the seconds of a duration such as `10m`, `36h`, `2d`; None for anything else."""
    match = _DURATION.fullmatch(duration)
    return int(match[1]) * _SECONDS[match[2]] if match else None


def _cron(text: str) -> str:
    """Return the text with normalized white space.

    Raises ValueError unless it looks like a cron expression: five fields, or a name such as @daily.
    """
    if text.startswith("@") or len(text.split()) == 5:
        return " ".join(text.split())
    raise ValueError('a cron expression has five fields, such as "0 3 * * 1" (minute, hour, day, month, weekday)')


class EnvironmentVariable(Declared):
    """A secret in an environment variable."""

    env: str = Field(pattern=_VARIABLE, description="Name of the environment variable that holds it.")

    def read(self, setting: str) -> str:
        """Read the variable; raise ConfigError with the `setting` of the YAML if it is not set."""
        if value := os.environ.get(self.env):
            return value
        raise ConfigError(f"{setting}: the environment variable {self.env} is not set where the sensors are evaluated")


class Email(Declared):
    """Mail over SMTP. User and password come only from the environment."""

    host: str = Field(min_length=1, description="Name of the SMTP server.")
    port: int = Field(587, ge=1, le=65_535, description="Its port.")
    tls: Literal["starttls", "tls", "none"] = Field(
        "starttls", description="`starttls` (port 587), `tls` from the first byte (465), or `none`."
    )
    sender: str = Field(alias="from", description="Sender address.")
    to: tuple[str, ...] = Field(min_length=1, description="Recipient addresses.")
    user: EnvironmentVariable | None = Field(
        None, description="`{env: NAME}`; without it the server is used without login."
    )
    password: EnvironmentVariable | None = Field(None, description="`{env: NAME}`.")

    @field_validator("sender", "to")
    @classmethod
    def _addresses(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for address in (value,) if isinstance(value, str) else value:
            if not _ADDRESS.fullmatch(address):
                raise ValueError(f"{address!r} is not an e-mail address, such as data@example.org")
        return value

    @model_validator(mode="after")
    def _login(self) -> Self:
        if (self.user is None) != (self.password is None):
            raise ValueError("`user` and `password` must be set together")
        if self.user is not None and self.tls == "none":
            raise ValueError("a password would be sent unencrypted. Use `tls: starttls` or `tls: tls`")
        return self


class OnFailure(Declared):
    """Notifications of failed runs and failed blocking checks."""

    webhook: str | EnvironmentVariable | None = Field(
        None, description="URL that receives a POST with JSON; `{env: NAME}` if the URL is secret."
    )
    email: Email | None = Field(None, description="Mail over SMTP.")

    @field_validator("webhook")
    @classmethod
    def _is_http(cls, webhook: str | EnvironmentVariable | None) -> str | EnvironmentVariable | None:
        if isinstance(webhook, str) and not re.match(r"https?://[^/\s]+", webhook):
            raise ValueError("must be a URL that begins with http:// or https://, or `{env: NAME}`")
        return webhook

    @model_validator(mode="after")
    def _require_receiver(self) -> Self:
        if self.webhook is None and self.email is None:
            raise ValueError("must have `webhook`, `email` or both")
        return self


class Automation(Declared):
    """Automatic actions of a dataset; default: none."""

    on_new_files: str | None = Field(
        None,
        description="Poll the source at this interval (`10m`) or cron expression (`*/10 * * * *`), and build changes "
        "since the plan.",
    )
    schedule: str | None = Field(
        None, description='Build the dataset at the times of this cron expression: `"0 3 * * 1"`.'
    )
    timezone: str = Field("UTC", description="Time zone of the cron expressions, such as `Europe/Berlin`.")
    freshness: str | None = Field(None, description="Maximum time between two builds of the products: `36h`.")
    on_failure: OnFailure | None = Field(None, description="Notifications of failures: `webhook`, `email` or both.")

    @field_validator("on_new_files")
    @classmethod
    def _interval(cls, value: str | None) -> str | None:
        if value is None or (seconds := seconds_of(value)) is None:
            return value if value is None else _interval_or_cron(value)
        if seconds < SHORTEST_INTERVAL:
            raise ValueError(f"must be at least {SHORTEST_INTERVAL}s, the interval of Dagster's daemon")
        return value

    @field_validator("schedule")
    @classmethod
    def _schedule(cls, value: str | None) -> str | None:
        return value if value is None else _cron(value)

    @field_validator("timezone")
    @classmethod
    def _timezone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        # ZoneInfo raises ValueError for a name that leaves the database (`../x`), and OSError for a folder in it
        # (`Europe`)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError("unknown time zone. Use a name from the IANA list, such as UTC or Europe/Berlin") from None
        return value

    @field_validator("freshness")
    @classmethod
    def _window(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if (seconds := seconds_of(value)) is None:
            raise ValueError(f"must be a duration: {DURATIONS}")
        if seconds < SHORTEST_WINDOW:
            raise ValueError(f"must be at least {SHORTEST_WINDOW}s")
        return value

    @property
    def interval(self) -> int | None:
        """Seconds between two polls of the source; None if a cron expression or nothing is declared."""
        return None if self.on_new_files is None else seconds_of(self.on_new_files)

    @property
    def look_cron(self) -> str | None:
        """The cron expression for polling the source; None if an interval or nothing is declared."""
        return None if self.on_new_files is None or self.interval is not None else self.on_new_files

    @property
    def window(self) -> timedelta | None:
        """Maximum age of the products; None if nothing is declared."""
        return None if self.freshness is None else timedelta(seconds=seconds_of(self.freshness) or 0)

    @property
    def crons(self) -> dict[str, str]:
        """Cron expressions by their YAML keys."""
        cron_by_key = {"on_new_files": self.look_cron, "schedule": self.schedule}
        return {key: cron for key, cron in cron_by_key.items() if cron is not None}


def _interval_or_cron(text: str) -> str:
    try:
        return _cron(text)
    except ValueError as error:
        raise ValueError(f"neither a duration ({DURATIONS}) nor a cron expression: {error}") from None
