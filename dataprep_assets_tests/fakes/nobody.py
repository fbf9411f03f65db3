"""An address at which no server listens."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def refused_url() -> Iterator[str]:
    """Yield a URL that refuses connections until the end of the block.

    The port is bound without listening, because another server could take a free port in the meantime.
    """
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
