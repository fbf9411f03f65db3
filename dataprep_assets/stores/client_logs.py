"""Keeps the clients of stores from logging secrets: at DEBUG they write whole requests, with signatures.

Setting the root logger to DEBUG is meant for this project, not for what botocore signs. So these loggers start at INFO.
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
    """Keep clients of stores from logging requests and answers; a higher level that was set stays."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(max(logger.level, logging.INFO))
