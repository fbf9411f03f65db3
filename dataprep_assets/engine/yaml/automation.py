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

from dataprep_assets.engine.yaml.declaration_model import DeclarationModel
from dataprep_assets.errors import ConfigError

MIN_INTERVAL_SECONDS = 5
"""Minimum seconds between two polls of a source, because Dagster's daemon does not evaluate sensors more often."""
MIN_WINDOW_SECONDS = 60
"""Shortest freshness window in seconds: Dagster's own lower limit."""

_DURATION = re.compile(r"([1-9]\d{0,5})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
DURATIONS = "a number and `s`, `m`, `h` or `d`, such as 10m, 36h, 2d"
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
_ADDRESS = re.compile(r"[^@\s]+@[^@\s]+")


def parse_duration(duration: str) -> int | None:
    """Return the seconds of a duration such as `10m`, `36h` or `2d`; None if the text is not a duration."""
    match = _DURATION.fullmatch(duration)
    return int(match[1]) * _SECONDS[match[2]] if match else None


def _normalize_cron(text: str) -> str:
    """Return the text with normalized white space.

    Raises ValueError unless it looks like a cron expression: five fields, or a name such as @daily.
    """
    if text.startswith("@") or len(text.split()) == 5:
        return " ".join(text.split())
    raise ValueError('a cron expression must have five fields, such as "0 3 * * 1" (minute, hour, day, month, weekday)')


class EnvironmentVariable(DeclarationModel):
    """A setting that is read from an environment variable, so that the YAML contains no secret."""

    env: str = Field(pattern=_VARIABLE, description="Name of the environment variable.")

    def read(self, setting: str) -> str:
        """Read the variable; raise ConfigError with the `setting` of the YAML if it is not set."""
        if value := os.environ.get(self.env):
            return value
        raise ConfigError(
            f"{setting}: the environment variable {self.env} is not set. Set it for Dagster's daemon and code location"
        )


class Email(DeclarationModel):
    """E-mail over SMTP. The user name and password can come only from the environment."""

    host: str = Field(min_length=1, description="Host name of the SMTP server.")
    port: int = Field(587, ge=1, le=65_535, description="Port of the SMTP server.")
    tls: Literal["starttls", "tls", "none"] = Field(
        "starttls",
        description=(
            "Encryption of the connection. `starttls` (usually port 587) begins unencrypted; `tls` (port 465) is "
            "encrypted from the start; `none` is unencrypted."
        ),
    )
    sender: str = Field(alias="from", description="E-mail address of the sender.")
    to: tuple[str, ...] = Field(min_length=1, description="E-mail addresses of the recipients.")
    user: EnvironmentVariable | None = Field(
        None,
        description=(
            "Environment variable with the user name, as `{env: NAME}`. Requires `password`. Default: no login."
        ),
    )
    password: EnvironmentVariable | None = Field(
        None, description="Environment variable with the password, as `{env: NAME}`. Requires `user`."
    )

    @field_validator("sender", "to")
    @classmethod
    def _validate_addresses(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for address in (value,) if isinstance(value, str) else value:
            if not _ADDRESS.fullmatch(address):
                raise ValueError(f"{address!r} is not an e-mail address, such as data@example.org")
        return value

    @model_validator(mode="after")
    def _require_login(self) -> Self:
        if (self.user is None) != (self.password is None):
            raise ValueError("`user` and `password` must be set together")
        if self.user is not None and self.tls == "none":
            raise ValueError("a password would be sent unencrypted. Use `tls: starttls` or `tls: tls`")
        return self


class FailureNotifications(DeclarationModel):
    """Notifications of failed runs and failed blocking checks."""

    webhook: str | EnvironmentVariable | None = Field(
        None,
        description=(
            "URL to which each notification is sent as JSON (HTTP POST). Use `{env: NAME}` for a secret URL. "
            "Default: no webhook."
        ),
    )
    email: Email | None = Field(None, description="E-mail settings. Default: no e-mail.")

    @field_validator("webhook")
    @classmethod
    def _require_http_url(cls, webhook: str | EnvironmentVariable | None) -> str | EnvironmentVariable | None:
        if isinstance(webhook, str) and not re.match(r"https?://[^/\s]+", webhook):
            raise ValueError("must be a URL that begins with http:// or https://, or `{env: NAME}`")
        return webhook

    @model_validator(mode="after")
    def _require_receiver(self) -> Self:
        if self.webhook is None and self.email is None:
            raise ValueError("must have `webhook`, `email` or both")
        return self


class Automation(DeclarationModel):
    """Automatic builds and notifications. Each key enables one action; by default there are none."""

    on_new_files: str | None = Field(
        None,
        description=(
            "How often the source is polled: an interval (`10m`) or a cron expression (`*/10 * * * *`). A "
            "changed source starts a build. Default: the source is not polled."
        ),
    )
    schedule: str | None = Field(
        None,
        description=(
            'Cron expression for regular builds, such as `"0 3 * * 1"` for Mondays at 3:00. Default: no regular builds.'
        ),
    )
    timezone: str = Field("UTC", description="Time zone of the cron expressions, such as `Europe/Berlin`.")
    freshness: str | None = Field(
        None,
        description=(
            "Maximum age of the final artifacts, such as `36h`. A check warns if they are older. Default: no limit."
        ),
    )
    on_failure: FailureNotifications | None = Field(
        None,
        description="Receivers of notifications of failed runs and failed blocking checks. Default: no notifications.",
    )

    @field_validator("on_new_files")
    @classmethod
    def _validate_interval(cls, value: str | None) -> str | None:
        if value is None or (seconds := parse_duration(value)) is None:
            return value if value is None else _validate_interval_or_cron(value)
        if seconds < MIN_INTERVAL_SECONDS:
            raise ValueError(f"must be at least {MIN_INTERVAL_SECONDS}s, the interval of Dagster's daemon")
        return value

    @field_validator("schedule")
    @classmethod
    def _validate_schedule(cls, value: str | None) -> str | None:
        return value if value is None else _normalize_cron(value)

    @field_validator("timezone")
    @classmethod
    def _validate_timezone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        # ZoneInfo raises ValueError for a name outside its database (`../x`), and OSError for a folder of it
        # (`Europe`).
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError("unknown time zone. Use a name from the IANA list, such as UTC or Europe/Berlin") from None
        return value

    @field_validator("freshness")
    @classmethod
    def _validate_window(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if (seconds := parse_duration(value)) is None:
            raise ValueError(f"must be a duration: {DURATIONS}")
        if seconds < MIN_WINDOW_SECONDS:
            raise ValueError(f"must be at least {MIN_WINDOW_SECONDS}s")
        return value

    @property
    def interval(self) -> int | None:
        """Seconds between two polls of the source; None if a cron expression or nothing is declared."""
        return None if self.on_new_files is None else parse_duration(self.on_new_files)

    @property
    def poll_cron(self) -> str | None:
        """The cron expression for polling the source; None if an interval or nothing is declared."""
        return None if self.on_new_files is None or self.interval is not None else self.on_new_files

    @property
    def window(self) -> timedelta | None:
        """Maximum age of the products; None if nothing is declared."""
        return None if self.freshness is None else timedelta(seconds=parse_duration(self.freshness) or 0)

    @property
    def crons(self) -> dict[str, str]:
        """Cron expressions by their YAML keys."""
        cron_by_key = {"on_new_files": self.poll_cron, "schedule": self.schedule}
        return {key: cron for key, cron in cron_by_key.items() if cron is not None}


def _validate_interval_or_cron(text: str) -> str:
    try:
        return _normalize_cron(text)
    except ValueError as error:
        raise ValueError(f"neither a duration ({DURATIONS}) nor a cron expression: {error}") from None
