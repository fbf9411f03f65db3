"""Log filters that keep secrets out of the logs of store clients, which write full signed requests at DEBUG.

Setting the root logger to DEBUG should show this project's messages, but not botocore's signed requests. Therefore the
clients' loggers start at INFO. httpx and its fork (used by the Hugging Face Hub client) write each URL at INFO, so the
query, which contains the signature, is removed from their messages.
"""

import logging
import re

_BOTOCORE_LOGGERS = (
    *("auth", "awsrequest", "client", "credentials", "endpoint", "hooks", "httpsession", "parsers", "regions"),
    *("retries", "retryhandler", "signers", "tokens", "utils"),
)
_LOGGERS = (
    *("botocore", "boto3", "s3transfer", "urllib3", "urllib3.connectionpool", "urllib3.connection"),
    *("requests", "google.auth", "google.auth.transport", "google.resumable_media", "google.cloud.storage"),
    *(f"botocore.{part}" for part in _BOTOCORE_LOGGERS),
    # These loggers would write all request and response headers, such as `Location` and `Set-Cookie`.
    *(
        f"{core}.{part}"
        for core in ("httpcore", "httpcore2")
        for part in ("connection", "http11", "http2", "proxy", "socks")
    ),
)
_QUERY = re.compile(r"(https?://[^\s?'\"<>]+)\?[^\s'\"<>]+")


def strip_queries(text: str) -> str:
    """Return the text with the query of each URL removed, because a storage URL's query contains its signature."""
    return _QUERY.sub(r"\1?...", text)


class _QueryFilter(logging.Filter):
    """Filter that removes the queries of URLs from log records."""

    def filter(self, record: logging.LogRecord) -> bool:
        # Format the message here and drop the arguments, because they contain the URL.
        record.msg, record.args = strip_queries(record.getMessage()), ()
        return True


def keep_secrets_from_logs() -> None:
    """Keep store clients from logging requests and responses; loggers with a higher level keep that level."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(max(logger.level, logging.INFO))
    # List each logger that writes URLs, because a logger's filter does not see its child loggers' records.
    for name in ("httpx", "httpx2", "huggingface_hub.utils._http"):
        logger = logging.getLogger(name)
        if not any(isinstance(log_filter, _QueryFilter) for log_filter in logger.filters):
            logger.addFilter(_QueryFilter())
