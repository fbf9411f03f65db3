"""Owns the address at which nobody listens."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def nobody_there() -> Iterator[str]:
    """A URL that refuses connections, for as long as the block lasts.

    The port is bound and not listened on: one that is only free may be taken by another server meanwhile.
    """
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
