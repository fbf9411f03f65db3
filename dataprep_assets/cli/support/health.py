"""State of the webserver of `dataprep ui`: whether it answers, and which problems it has."""

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
# Query a server that listens on all addresses (`0.0.0.0` or `::`) at the loopback address, because a client cannot
# reliably connect to a wildcard address.
_LOOPBACK_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class Health:
    """Client that queries the state of one webserver."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = _LOOPBACK_HOSTS.get(host, host), port
        self._loaded: dict[str, float] = {}
        self._left_out: list[str] = []
        self._was_healthy: set[str] = set()

    @property
    def url(self) -> str:
        """Address to open in a browser."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    def problems(self) -> list[str] | None:
        """Return a sentence for each problem, without text of a dataset; None while the server does not answer."""
        try:
            data = self._query_server(_QUERY)
            entries = data["workspaceOrError"].get("locationEntries", [])
            if not entries or any(entry["loadStatus"] != "LOADED" for entry in entries):
                return None
            loaded = {entry["name"]: entry["updatedTimestamp"] for entry in entries}
            if loaded != self._loaded:
                self._left_out, self._loaded = self._find_left_out(), loaded
        except (OSError, HTTPException, ValueError):
            return None
        unloaded = [
            f"the code location {entry['name']} cannot be loaded: {_extract_first_line(entry['locationOrLoadError'])}"
            for entry in entries
            if entry["locationOrLoadError"]["__typename"] == "PythonError"
        ]
        daemons = data["instance"]["daemonHealth"]["allDaemonStatuses"]
        return [*unloaded, *self._left_out, *self._find_daemon_problems(daemons)]

    def _find_left_out(self) -> list[str]:
        """Return a sentence per dataset that the code location cannot load (`code_location.merge_definitions`)."""
        nodes = self._query_server(_ASSETS)["assetNodes"]
        groups = sorted(node["groupName"] for node in nodes if node["assetKey"]["path"][1:] == ["cannot_be_loaded"])
        return [f"{group}: the declaration cannot be loaded. Run `dataprep check {group}`" for group in groups]

    def _find_daemon_problems(self, statuses: list[dict[str, Any]]) -> list[str]:
        """Return a sentence per daemon that reports errors or has lost its heartbeat."""
        was_healthy_before = set(self._was_healthy)
        self._was_healthy |= {status["daemonType"] for status in statuses if status["healthy"]}
        # Omit the error messages, because a sensor's message may quote a row.
        return [
            f"the daemon {status['daemonType']} "
            + ("reports errors" if status["lastHeartbeatErrors"] else "does not respond")
            for status in statuses
            if status["lastHeartbeatErrors"]
            or (status["daemonType"] in was_healthy_before and status["healthy"] is False)
        ]

    def _query_server(self, query: str) -> Any:
        """Return the data of a GraphQL query; raise OSError, HTTPException or ValueError if there are none."""
        connection = HTTPConnection(self._host, self._port, timeout=_SECONDS)
        try:
            # Send the host name `localhost`, because the webserver's guard always accepts it, regardless of the
            # address.
            headers = {"Content-Type": "application/json", "Host": "localhost"}
            connection.request("POST", "/graphql", json.dumps({"query": query}), headers)
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        value = json.loads(text) if response.status == 200 else {}
        if not isinstance(value, dict) or not value.get("data"):
            raise ValueError(f"response {response.status}")
        return value["data"]


def _extract_first_line(error: dict[str, str]) -> str:
    return next(iter(error["message"].strip().splitlines()), "")[:300]
