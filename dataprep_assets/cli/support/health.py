"""What `dataprep ui` asks its webserver: whether it answers, and what is wrong."""

import json
from http.client import HTTPConnection, HTTPException
from typing import Any

_SECONDS = 10.0
"""Timeout of a request, in seconds."""
_QUERY = """{
  workspaceOrError { ... on Workspace { locationEntries {
    name loadStatus updatedTimestamp locationOrLoadError { __typename ... on PythonError { message } } } } }
  instance { daemonHealth { allDaemonStatuses { daemonType healthy lastHeartbeatErrors { message } } } } }"""
_ASSETS = "{ assetNodes { assetKey { path } groupName } }"
# `0.0.0.0` and `::` are all addresses of this machine: it is reached at loopback's
_ALL = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class Health:
    """Asks one webserver."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = _ALL.get(host, host), port
        self._loaded: dict[str, float] = {}
        self._left_out: list[str] = []
        self._was_healthy: set[str] = set()

    @property
    def url(self) -> str:
        """The address to open in a browser."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    def problems(self) -> list[str] | None:
        """Return a sentence for each problem, without text of a dataset; None while the server gives no answer."""
        try:
            found = self._ask(_QUERY)
            entries = found["workspaceOrError"].get("locationEntries", [])
            if not entries or any(entry["loadStatus"] != "LOADED" for entry in entries):
                return None
            loaded = {entry["name"]: entry["updatedTimestamp"] for entry in entries}
            if loaded != self._loaded:
                self._left_out, self._loaded = self._find_left_out(), loaded
        except (OSError, HTTPException, ValueError):
            return None
        unloaded = [
            f"the code location {entry['name']} cannot be loaded: {_first_line(entry['locationOrLoadError'])}"
            for entry in entries
            if entry["locationOrLoadError"]["__typename"] == "PythonError"
        ]
        return [*unloaded, *self._left_out, *self._of_daemons(found["instance"]["daemonHealth"]["allDaemonStatuses"])]

    def _find_left_out(self) -> list[str]:
        """A sentence for each dataset that the code location leaves out (`code_location.merge_definitions`)."""
        nodes = self._ask(_ASSETS)["assetNodes"]
        groups = sorted(node["groupName"] for node in nodes if node["assetKey"]["path"][1:] == ["cannot_be_loaded"])
        return [f"{group}: the declaration cannot be loaded. Run `dataprep check {group}`" for group in groups]

    def _of_daemons(self, statuses: list[dict[str, Any]]) -> list[str]:
        """A sentence for each daemon with errors, or without a heartbeat after it had one."""
        before = set(self._was_healthy)
        self._was_healthy |= {one["daemonType"] for one in statuses if one["healthy"]}
        # not the errors' own text, because one of a sensor may quote a row
        return [
            f"the daemon {one['daemonType']} "
            + ("reports errors" if one["lastHeartbeatErrors"] else "does not respond")
            for one in statuses
            if one["lastHeartbeatErrors"] or (one["daemonType"] in before and one["healthy"] is False)
        ]

    def _ask(self, query: str) -> Any:
        """The data of a GraphQL query; raises OSError, HTTPException or ValueError if there is none."""
        connection = HTTPConnection(self._host, self._port, timeout=_SECONDS)
        try:
            # the guard answers to this name at every address
            headers = {"Content-Type": "application/json", "Host": "localhost"}
            connection.request("POST", "/graphql", json.dumps({"query": query}), headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        value = json.loads(text) if answer.status == 200 else {}
        if not isinstance(value, dict) or not value.get("data"):
            raise ValueError(f"answer {answer.status}")
        return value["data"]


def _first_line(error: dict[str, str]) -> str:
    return next(iter(error["message"].strip().splitlines()), "")[:300]
