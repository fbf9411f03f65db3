"""What the clients of stores must not log: at DEBUG they write whole requests, with signatures and upload sessions.

Whoever sets the root logger to DEBUG means this project, not what botocore signs. So these loggers begin at INFO.
"""

import logging

__all__ = ["keep_secrets_from_logs"]

_OF_BOTOCORE = (
    *("auth", "awsrequest", "client", "credentials", "endpoint", "hooks", "httpsession", "parsers", "regions"),
    *("retries", "retryhandler", "signers", "tokens", "utils"),
)
_LOGGERS = (
    *("botocore", "boto3", "s3transfer", "urllib3", "urllib3.connectionpool", "urllib3.connection"),
    *("requests", "google.auth", "google.auth.transport", "google.resumable_media", "google.cloud.storage"),
    *(f"botocore.{part}" for part in _OF_BOTOCORE),
)


def keep_secrets_from_logs() -> None:
    """Let no client of a store write a request or an answer; a level that was set higher stays."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(max(logger.level, logging.INFO))
