"""The guard in front of Dagster's webserver: a table of its rules, and the real server behind it in this process."""

import json
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from dataprep_assets.webserver.__main__ import GuardedWebserver
from dataprep_assets.webserver.guard import HOSTS, explain_refusal, list_hosts
from dataprep_assets_tests.project import new_instance

HERE = "localhost:3000"
JSON = {"Content-Type": "application/json"}
LIMIT = 'mutation { setConcurrencyLimit(concurrencyKey: "hostile", limit: 3) }'
REPORT = "/report_asset_materialization/hostile"


def make_scope(
    method: str = "GET", path: str = "/", query: str = "", kind: str = "http", **headers: str
) -> dict[str, Any]:
    """Return an ASGI scope; in names of headers, `_` replaces `-`."""
    given = {"host": HERE, **{name.replace("_", "-").lower(): value for name, value in headers.items()}}
    pairs = [(name.encode(), value.encode()) for name, value in given.items()]
    return {"type": kind, "method": method, "path": path, "query_string": query.encode(), "headers": pairs}


POST = {"method": "POST", "path": "/graphql", "content_type": "application/json"}


@pytest.mark.parametrize(
    "made",
    [
        make_scope(),
        make_scope(host="127.0.0.1"),
        make_scope(host="[::1]:3000"),
        make_scope(host="LOCALHOST:3000"),
        make_scope(host="dagster.hospital.example"),
        make_scope(path="/server_info", host="10.0.0.7:80"),
        make_scope(**POST),
        make_scope(**POST, origin=f"http://{HERE}", sec_fetch_site="same-origin"),
        make_scope(**POST | {"content_type": "application/json; charset=utf-8"}),
        make_scope(method="POST", path=REPORT),
        make_scope(sec_fetch_site="none"),
        make_scope(sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="document"),
        make_scope(path="/graphql", accept="text/html"),
        make_scope(path="/graphql", kind="websocket", origin=f"http://{HERE}"),
        make_scope(path="/graphql", kind="websocket"),
    ],
)
def test_people_and_programs_are_allowed(made: dict[str, Any]) -> None:
    assert explain_refusal(made, list_hosts({HOSTS: " dagster.hospital.example ,"})) is None


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (make_scope(host="evil.example:3000"), f"add it to {HOSTS}"),
        (make_scope(host=""), "unknown host name"),
        (make_scope(host="localhost.evil.example"), "unknown host name"),
        (make_scope(method="POST", path="/server_info", host="10.0.0.7"), "unknown host name"),
        (make_scope(**POST, origin="http://evil.example"), "different origin"),
        (make_scope(**POST, origin="http://localhost:8000"), "different origin"),
        (make_scope(**POST, origin="null"), "different origin"),
        (make_scope(origin="http://evil.example"), "different origin"),
        (make_scope(**POST, sec_fetch_site="cross-site"), "different site"),
        (make_scope(**POST, sec_fetch_site="same-site"), "different site"),
        (make_scope(sec_fetch_site="cross-site", sec_fetch_mode="no-cors", sec_fetch_dest="image"), "different site"),
        (make_scope(sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="iframe"), "different site"),
        (
            make_scope(
                path="/graphql", sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="document"
            ),
            "different site",
        ),
        (make_scope(path="/graphql", query="query=mutation{x}"), "queries must use POST"),
        (make_scope(path="/graphql/", query="a=b&query=%7Bversion%7D"), "queries must use POST"),
        (make_scope(path="/prefix/graphql", query="query={version}"), "queries must use POST"),
        (make_scope(**POST | {"content_type": "text/plain"}), "application/json"),
        (make_scope(**POST | {"content_type": "Text/Plain; x=application/json"}), "application/json"),
        (make_scope(**POST | {"content_type": "multipart/form-data; boundary=x"}), "application/json"),
        (make_scope(method="POST", path=REPORT, content_length="5"), "application/json"),
        (make_scope(method="POST", path=REPORT, transfer_encoding="chunked"), "application/json"),
        (make_scope(method="DELETE"), "'DELETE'"),
        (make_scope(path="/graphql", kind="websocket", origin="http://evil.example"), "different origin"),
        (make_scope(path="/graphql", kind="websocket", sec_fetch_site="cross-site"), "different site"),
        (make_scope(path="/graphql", kind="websocket", host="evil.example"), "unknown host name"),
        (make_scope() | {"headers": [(b"host", HERE.encode()), (b"host", b"evil.example")]}, "twice"),
    ],
)
def test_pages_of_other_sites_are_refused(made: dict[str, Any], why: str) -> None:
    assert why in (explain_refusal(made, list_hosts({})) or "")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, dg.DagsterInstance]]:
    """Return Dagster's own application over an empty workspace, guarded, and its instance."""
    with (
        new_instance(tmp_path_factory.mktemp("home")) as instance,
        WorkspaceProcessContext(instance, EmptyWorkspaceTarget(), version="") as context,
    ):
        yield TestClient(GuardedWebserver(context).create_asgi_app(), base_url=f"http://{HERE}"), instance


def nothing_happened(instance: dg.DagsterInstance) -> bool:
    limits = instance.event_log_storage.get_concurrency_keys()
    return limits == set() and instance.get_latest_materialization_event(dg.AssetKey("hostile")) is None


def test_requests_of_a_hostile_page_change_nothing(served: tuple[TestClient, dg.DagsterInstance]) -> None:
    client, instance = served
    foreign = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
    plain, body = {"Content-Type": "text/plain"}, json.dumps({"query": LIMIT})
    answers = [
        client.get("/graphql", params={"query": LIMIT}),
        client.post("/graphql", params={"query": LIMIT}, headers=plain),
        client.post("/graphql", content=body, headers={**JSON, **foreign}),
        client.post("/graphql", content=body, headers={**JSON, "Host": "evil.example:3000"}),
        client.post(REPORT, content="{}", headers=plain),
        client.post(REPORT, headers={"Origin": "null"}),
        client.get("/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "iframe"}),
    ]
    assert [(answer.status_code, answer.text.startswith("Refused: ")) for answer in answers] == [(403, True)] * 7
    with pytest.raises(WebSocketDisconnect), client.websocket_connect(f"ws://{HERE}/graphql", headers=foreign):
        raise AssertionError("connected")
    assert nothing_happened(instance)


def test_the_ui_works_as_before_and_cannot_be_framed(served: tuple[TestClient, dg.DagsterInstance]) -> None:
    client, instance = served
    own = {**JSON, "Origin": f"http://{HERE}", "Sec-Fetch-Site": "same-origin"}
    page = client.get("/", headers={"Sec-Fetch-Site": "none"})
    assert page.status_code == 200
    assert page.headers["x-frame-options"] == "DENY"
    policies = page.headers.get_list("content-security-policy")
    assert len(policies) == 2, "Dagster's own policy stays"
    assert policies[1] == "frame-ancestors 'none'"
    with client.websocket_connect(f"ws://{HERE}/graphql", subprotocols=["graphql-ws"], headers=own) as socket:
        socket.send_json({"type": "connection_init"})
        assert socket.receive_json() == {"type": "connection_ack"}
    answer = client.post("/graphql", json={"query": LIMIT}, headers=own)
    assert answer.json()["data"] == {"setConcurrencyLimit": True}
    assert client.post(REPORT, json={}).status_code == 200
    assert not nothing_happened(instance), "the other test can fail"
