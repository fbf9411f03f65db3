"""A Kubernetes API on the loopback that knows Jobs alone: it keeps what is posted and has somebody run it."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

JOBS = "/apis/batch/v1/namespaces/dagster/jobs"


class Process(Protocol):
    """What a pod's command became."""

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""


@dataclass
class KubernetesApi:
    """The Jobs that were posted, by name, and the process of each; a Job of one pod that is never made again."""

    start: Callable[[dict[str, Any]], Process]
    url: str = ""
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)

    def take(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """A Job is posted; as the API answers."""
        name = manifest["metadata"]["name"]
        self.jobs[name] = manifest
        self.processes[name] = self.start(manifest)
        return self.answer(name)

    def answer(self, name: str) -> dict[str, Any]:
        """A Job with its status."""
        ended = self.processes[name].poll()
        status = {"active": 1} if ended is None else {"failed": 1} if ended else {"succeeded": 1}
        return self.jobs[name] | {"status": status}


@contextmanager
def kubernetes_api(start: Callable[[dict[str, Any]], Process]) -> Iterator[KubernetesApi]:
    """The API; `start` runs the pod of a Job that is posted."""
    made = KubernetesApi(start)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._tell(201, made.take(body)) if self.path == JOBS else self._tell(404, {"kind": "Status"})

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            name = path.removeprefix(JOBS + "/").removesuffix("/status")
            if name in made.jobs:
                self._tell(200, made.answer(name))
            elif path.startswith("/api/v1/namespaces/dagster/"):
                # pods of a lost node are gone, and their events too
                self._tell(200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": []})
            else:
                self._tell(404, {"kind": "Status"})

        def _tell(self, status: int, body: dict[str, Any]) -> None:
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield made
        server.shutdown()
