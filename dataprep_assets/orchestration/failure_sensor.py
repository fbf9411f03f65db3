"""`automation.on_failure`: Dagster's run failure sensor of one dataset, which reports by webhook and mail.

Dagster remembers which failures it has read, and shows an error of a report in the sensor's tick; it reports each
failure once. No message of this module holds the address of a webhook, a user or a password: they may be secrets.
"""

import json
import smtplib
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from urllib.parse import urlsplit

import dagster as dg

from dataprep_assets.errors import ConfigError, TransferError
from dataprep_assets.graph.automation import Email, EnvironmentVariable, OnFailure
from dataprep_assets.graph.declaration import DatasetDeclaration
from dataprep_assets.orchestration.deadline import within
from dataprep_assets.orchestration.failure import Failure, concerns, failure_of

INTERVAL_SECONDS = 30
LONGEST_TRY_SECONDS = 5.0
_PACKET_SECONDS = 4.0
"""How long to wait for one packet."""


def failure_sensor(declaration: DatasetDeclaration, on_failure: OnFailure) -> dg.SensorDefinition:
    """The sensor of a dataset.

    Args:
        declaration: The dataset's declaration.
        on_failure: The declared recipients.
    """
    channels = dict(_channels(on_failure))

    @dg.run_failure_sensor(
        name=f"{declaration.dataset}_on_failure",
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Reports failed runs of {declaration.dataset} by {' and '.join(channels)}.",
    )
    def reports(context: dg.RunFailureSensorContext) -> dg.SkipReason | None:
        run = context.dagster_run
        if not concerns(context.instance, run, declaration.dataset):
            return dg.SkipReason(f"run {run.run_id[:8]} did not fail at {declaration.dataset}")
        failure = failure_of(context.instance, run, declaration)
        refused = []
        for channel, send in channels.items():
            try:
                within(LONGEST_TRY_SECONDS, lambda send=send: send(failure))  # type: ignore[misc]
            except Exception as error:  # the other channel has its try, and no message has a secret
                known = isinstance(error, ConfigError | TransferError)
                late = f"no answer within {LONGEST_TRY_SECONDS:.0f} s"
                why = str(error) if known else late if isinstance(error, TimeoutError) else type(error).__name__
                refused.append(f"not reported by {channel}: {why}")
        if refused:
            raise TransferError(f"run {run.run_id[:8]}: {'; '.join(refused)}") from None
        return None

    return reports


def _channels(on_failure: OnFailure) -> Iterator[tuple[str, Callable[[Failure], None]]]:
    webhook, email = on_failure.webhook, on_failure.email
    if webhook is not None:
        yield "webhook", lambda failure: _post(webhook, failure)
    if email is not None:
        yield "mail", lambda failure: _mail(email, failure)


def _post(webhook: str | EnvironmentVariable, failure: Failure) -> None:
    """POST a failure as JSON; raises TransferError if it was not accepted, ConfigError if the variable is not set."""
    import httpx

    url = webhook if isinstance(webhook, str) else webhook.read("automation.on_failure.webhook")
    named = f"the webhook of {webhook.env}" if isinstance(webhook, EnvironmentVariable) else f"{urlsplit(url).hostname}"
    # in ASCII: a file name in it may be no Unicode
    body, kind = json.dumps(failure.to_json()), {"Content-Type": "application/json"}
    try:
        answer = httpx.post(url, content=body, headers=kind, timeout=_PACKET_SECONDS)
    except httpx.ConnectError:
        raise TransferError(f"{named} cannot be reached") from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise TransferError(f"{named}: {type(error).__name__}; check the URL") from None
    if not answer.is_success:
        raise TransferError(f"{named} answered {answer.status_code}")


def _mail(email: Email, failure: Failure) -> None:
    """Send a mail; raises TransferError if the server did not accept it, ConfigError if a variable is not set."""
    message = EmailMessage()
    message["From"], message["To"] = email.sender, ", ".join(email.to)
    message["Subject"], text = failure.mail
    # the name of a file may have half of a surrogate pair, of which there is no UTF-8
    message.set_content(text.encode(errors="backslashreplace").decode())
    login = None
    if email.user is not None and email.password is not None:
        setting = "automation.on_failure.email"
        login = email.user.read(f"{setting}.user"), email.password.read(f"{setting}.password")
    try:
        with _server(email) as server:
            if login is not None:
                server.login(*login)
            server.send_message(message)
    # all of them are kinds of OSError or ValueError, and their texts may quote what was sent
    except (OSError, ValueError) as error:
        named, code = f"the mail server {email.host}:{email.port}", getattr(error, "smtp_code", "")
        why = f"{type(error).__name__} {code}".strip()
        raise TransferError(f"{named} did not take the mail ({why}); check `host`, `port`, `tls` and `user`") from None


@contextmanager
def _server(email: Email) -> Iterator[smtplib.SMTP]:
    tls = ssl.create_default_context()
    if email.tls == "tls":
        server: smtplib.SMTP = smtplib.SMTP_SSL(email.host, email.port, timeout=_PACKET_SECONDS, context=tls)
    else:
        server = smtplib.SMTP(email.host, email.port, timeout=_PACKET_SECONDS)
    with server:
        if email.tls == "starttls":
            server.starttls(context=tls)
        yield server
