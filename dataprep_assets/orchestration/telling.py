"""Reports a failure outside of Dagster, by webhook or mail. One attempt takes a few seconds at most.

No message of this module holds the address of a webhook, a user or a password: they may be secrets.
"""

import json
import smtplib
import ssl
from collections.abc import Mapping
from email.message import EmailMessage
from typing import Any
from urllib.parse import urlsplit

from dataprep_assets.errors import TransferError
from dataprep_assets.graph.automation import Email, EnvironmentVariable
from dataprep_assets.orchestration.deadline import within

LONGEST_TRY_SECONDS = 5.0
_PACKET_SECONDS = 4.0
"""How long to wait for one packet."""


def post(webhook: str | EnvironmentVariable, message: Mapping[str, Any]) -> None:
    """POST a message as JSON; raises TransferError if it was not accepted, ConfigError if the variable is not set."""
    import httpx

    url = webhook if isinstance(webhook, str) else webhook.read("automation.on_failure.webhook")
    named = f"the webhook of {webhook.env}" if isinstance(webhook, EnvironmentVariable) else f"{urlsplit(url).hostname}"
    try:
        # in ASCII: a file name in it may be no Unicode
        body, kind = json.dumps(message), {"Content-Type": "application/json"}
        answer = within(
            LONGEST_TRY_SECONDS, lambda: httpx.post(url, content=body, headers=kind, timeout=_PACKET_SECONDS)
        )
    except (TimeoutError, httpx.TimeoutException):
        raise TransferError(f"{named} did not answer within {LONGEST_TRY_SECONDS:.0f} s") from None
    except httpx.ConnectError:
        raise TransferError(f"{named} cannot be reached") from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise TransferError(f"{named}: {type(error).__name__}; check the URL") from None
    if not answer.is_success:
        raise TransferError(f"{named} answered {answer.status_code}")


def mail(email: Email, subject: str, text: str) -> None:
    """Send a mail; raises TransferError if the server did not accept it, ConfigError if a variable is not set."""
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = email.sender, ", ".join(email.to), subject
    # the name of a file may have half of a surrogate pair, of which there is no UTF-8
    message.set_content(text.encode(errors="backslashreplace").decode())
    login = None
    if email.user is not None and email.password is not None:
        setting = "automation.on_failure.email"
        login = email.user.read(f"{setting}.user"), email.password.read(f"{setting}.password")
    named = f"the mail server {email.host}:{email.port}"
    try:
        # the order below matters: TimeoutError, SSLError and what smtplib raises are kinds of OSError, UnicodeError is
        # one of ValueError
        within(LONGEST_TRY_SECONDS, lambda: _send(email, message, login))
    except TimeoutError:
        raise TransferError(f"{named} did not answer within {LONGEST_TRY_SECONDS:.0f} s") from None
    except smtplib.SMTPAuthenticationError as error:
        raise TransferError(f"{named} refused the user and password ({error.smtp_code})") from None
    except smtplib.SMTPResponseException as error:
        raise TransferError(f"{named} answered {error.smtp_code}") from None
    except UnicodeError:
        raise TransferError(
            f"{named}: its name, the user or the password has a character that SMTP cannot send"
        ) from None
    except (smtplib.SMTPException, ssl.SSLError, ValueError) as error:
        raise TransferError(f"{named} did not take the mail: {type(error).__name__}; check `tls` and `port`") from None
    except OSError as error:
        raise TransferError(f"{named} cannot be reached: {error.strerror or type(error).__name__}") from None


def _send(email: Email, message: EmailMessage, login: tuple[str, str] | None) -> None:
    if email.tls == "tls":
        server: smtplib.SMTP = smtplib.SMTP_SSL(
            email.host, email.port, timeout=_PACKET_SECONDS, context=ssl.create_default_context()
        )
    else:
        server = smtplib.SMTP(email.host, email.port, timeout=_PACKET_SECONDS)
    with server:
        if email.tls == "starttls":
            server.starttls(context=ssl.create_default_context())
        if login is not None:
            server.login(*login)
        server.send_message(message)
