"""A Kubernetes API on the loopback interface that supports only Jobs: it stores posted Jobs and starts their pods."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

JOBS = "/apis/batch/v1/namespaces/dagster/jobs"


class Process(Protocol):
    """The process of a pod's command."""

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""


@dataclass
class KubernetesApi:
    """The posted Jobs, by name, and the process of each. A Job has one pod, which is never restarted."""

    start: Callable[[dict[str, Any]], Process]
    url: str = ""
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)

    def take(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Accept a posted Job, and return the API's answer."""
        name = manifest["metadata"]["name"]
        self.jobs[name] = manifest
        self.processes[name] = self.start(manifest)
        return self.answer(name)

    def answer(self, name: str) -> dict[str, Any]:
        """Return a Job with its status."""
        ended = self.processes[name].poll()
        status = {"active": 1} if ended is None else {"failed": 1} if ended else {"succeeded": 1}
        return self.jobs[name] | {"status": status}


@contextmanager
def kubernetes_api(start: Callable[[dict[str, Any]], Process]) -> Iterator[KubernetesApi]:
    """Run the API; `start` runs the pod of a posted Job."""
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
                # Return no pods, because the pods of a lost node are removed with their events.
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
