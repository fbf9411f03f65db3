"""Keeps the clients of stores from logging secrets: at DEBUG they write whole requests, with signatures.

Setting the root logger to DEBUG is meant for this project, not for what botocore signs. So these loggers start at INFO.
httpx and its fork, the hub's client, write each URL at INFO: there the query, which signs it, is cut.
"""

import logging
import re

_OF_BOTOCORE = (
    *("auth", "awsrequest", "client", "credentials", "endpoint", "hooks", "httpsession", "parsers", "regions"),
    *("retries", "retryhandler", "signers", "tokens", "utils"),
)
_LOGGERS = (
    *("botocore", "boto3", "s3transfer", "urllib3", "urllib3.connectionpool", "urllib3.connection"),
    *("requests", "google.auth", "google.auth.transport", "google.resumable_media", "google.cloud.storage"),
    *(f"botocore.{part}" for part in _OF_BOTOCORE),
    # They would write all headers of requests and answers, including `Location` and `Set-Cookie`.
    *(
        f"{core}.{part}"
        for core in ("httpcore", "httpcore2")
        for part in ("connection", "http11", "http2", "proxy", "socks")
    ),
)
_QUERY = re.compile(r"(https?://[^\s?'\"<>]+)\?[^\s'\"<>]+")


def without_queries(text: str) -> str:
    """The text with its URLs cut before the query, which has the signature of a storage URL."""
    return _QUERY.sub(r"\1?...", text)


class _WithoutQueries(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        # the URL is among the arguments, so the message is made here and they are dropped
        record.msg, record.args = without_queries(record.getMessage()), ()
        return True


def keep_secrets_from_logs() -> None:
    """Keep clients of stores from logging requests and answers; a higher level that was set stays."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(max(logger.level, logging.INFO))
    # A logger's filter does not see records of the loggers below it: so each that writes URLs is named.
    for name in ("httpx", "httpx2", "huggingface_hub.utils._http"):
        logger = logging.getLogger(name)
        if not any(isinstance(one, _WithoutQueries) for one in logger.filters):
            logger.addFilter(_WithoutQueries())
