"""Owns the local Google Cloud Storage: a real HTTP server with the parts of its JSON and XML APIs that a store needs.

Reached by ``STORAGE_EMULATOR_HOST`` with google-cloud-storage's own client. It serves::

    GET              /storage/v1/b/{bucket}
    GET              /storage/v1/b/{bucket}/o                 prefix, delimiter, pages
    GET|PATCH|DELETE /storage/v1/b/{bucket}/o/{object}        alt=media with Range; also below /download
    POST             /upload/storage/v1/b/{bucket}/o          uploadType media, multipart, resumable (PUT, 308, Range)
    POST             /storage/v1/b/{bucket}/o/{object}/compose
    POST             /storage/v1/b/{bucket}/o/{object}/rewriteTo|copyTo/b/{bucket}/o/{object}
    POST|PUT|DELETE|GET  /{bucket}/{object}?uploads|uploadId=|partNumber=    XML multipart uploads

As in the real service: every write makes a new generation; ifGenerationMatch and its kin hold for every method;
composed objects have a componentCount, a CRC32C and no MD5; a composition takes 1 to 32 sources; an upload whose
declared CRC32C or MD5 is wrong is refused; numbers of 64 bits are strings; `fields` selects; an upload shows nothing
before it is complete.

Faults are programmed per operation and request number with :meth:`GcsServer.fail`; :attr:`GcsServer.log` says what was
asked for.
"""

import socket
import threading
import time
from collections.abc import Set
from types import TracebackType
from urllib.request import urlopen

from dataprep_assets_tests.fakes.gcs_http import Answer, Listener, refused
from dataprep_assets_tests.fakes.gcs_json import JsonApi
from dataprep_assets_tests.fakes.gcs_state import GcsState, RefusalError
from dataprep_assets_tests.fakes.gcs_xml import XmlApi, xml_refused


class _Handler(JsonApi, XmlApi):
    """Each refusal is answered in the form of the API that was asked."""

    def _try(self, operation: str) -> Answer:
        try:
            answer: Answer = getattr(self, f"_do_{operation}")()
            return answer
        except RefusalError as refusal:
            if operation == "xml":
                return xml_refused(refusal)
            if operation == "media":
                return Answer(status=refusal.status, body=refusal.message.encode())
            return refused(refusal.status, refusal.reason, refusal.message)


class GcsServer(GcsState):
    """One bucket on a loopback port, as a context manager.

    ``page_size`` caps a page of a listing; ``rewrite_bytes`` is what one rewrite request copies at most;
    ``seconds_per_block`` slows request and answer bodies down, per 64 KiB; ``receive_buffer`` (bytes) keeps the kernel
    from taking in what the server has not read.
    """

    def __init__(
        self,
        *,
        bucket: str = "bucket",
        page_size: int = 1000,
        rewrite_bytes: int = 1 << 40,
        seconds_per_block: float = 0.0,
        min_part_bytes: int = 5 * 1024 * 1024,
        receive_buffer: int | None = None,
    ) -> None:
        super().__init__(
            bucket=bucket,
            page_size=page_size,
            rewrite_bytes=rewrite_bytes,
            seconds_per_block=seconds_per_block,
            min_part_bytes=min_part_bytes,
        )
        self._server = Listener(self, _Handler)
        if receive_buffer is not None:
            self._server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)

    def __enter__(self) -> "GcsServer":
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        """The value of ``STORAGE_EMULATOR_HOST``."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def await_the_end_of_connections_beside(self, known: Set[tuple[str, int]]) -> None:
        """Wait until what killed clients had sent was read and done; a request that hears silence is not waited for."""
        # Connect once more, because connections are accepted in the order of their arrival, so all earlier ones are
        # then known.
        with urlopen(f"{self.endpoint}/storage/v1/b/{self.bucket}", timeout=120):
            pass
        deadline = time.monotonic() + 120
        while self.connections - known:
            assert time.monotonic() < deadline, f"connections are still open: {self.connections - known}"
            time.sleep(0.01)
