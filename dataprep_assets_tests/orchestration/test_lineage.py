"""OpenLineage events of built artifacts, received by a server on the loopback interface or appended to a file."""

import json
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dataprep_assets.engine.lineage.openlineage import API_KEY, OpenLineage, check_target
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration, LineageDeclaration
from dataprep_assets.errors import ConfigError, TransferError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.orchestration.build import BuildListener, build_job
from dataprep_assets.resources import create_resources
from dataprep_assets.stores.endpoints import ALLOW_HTTP
from dataprep_assets_tests.engine.notices import make_notices_specs
from dataprep_assets_tests.fakes.listeners import Webhook, run_webhook
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.orchestration.notice_board import NoticeBoard, make_notice_board
from dataprep_assets_tests.servers import free_port

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


class Reports(BuildListener):
    """Listener that keeps the reported lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def before(self, *arguments: Any, **named: Any) -> None:
        pass

    def after(self, *arguments: Any) -> None:
        pass

    def report_line(self, sentence: str) -> None:
        self.lines.append(sentence)


@pytest.fixture
def board(tmp_path: Path) -> Iterator[NoticeBoard]:
    with make_notice_board(tmp_path) as made:
        yield made


@pytest.fixture
def server() -> Iterator[Webhook]:
    pytest.importorskip("openlineage.client", reason="the extra `openlineage` is not installed")
    with run_webhook() as made:
        made.url = made.url.removesuffix("/hook")
        yield made


def build(board: NoticeBoard, target: str | None = None, **lineage: Any) -> list[str]:
    """Build the notices with events to a target; return the reported lines."""
    declared = LineageDeclaration.model_validate({"openlineage": target, **lineage})
    declaration = board.declaration.model_copy(update={"lineage": declared})
    reports = Reports()
    job = build_job(make_notices_specs(declaration), listeners=[reports])
    result = job.execute_in_process(
        instance=board.instance, resources=create_resources(board.storage), run_config=QUIET, raise_on_error=False
    )
    assert result.success
    return reports.lines


def name_artifact(event: dict[str, Any]) -> str:
    (output,) = event["outputs"]
    return str(output["name"]).partition("/artifacts/")[2]


def test_each_built_artifact_has_a_pair_of_events_with_its_inputs_and_digests(
    board: NoticeBoard, server: Webhook
) -> None:
    build(board, server.url)
    names = ["notices/notices/n-0", "notices/notices/n-1", "notices/notices/n-2", "notices/board"]
    pairs = [(name_artifact(event), event["eventType"]) for event in server.got]
    assert pairs == [(name, state) for name in names for state in ("START", "COMPLETE")]
    contents = {}
    for start, complete in zip(server.got[::2], server.got[1::2], strict=True):
        assert start["run"]["runId"] == complete["run"]["runId"]
        assert datetime.fromisoformat(start["eventTime"]) <= datetime.fromisoformat(complete["eventTime"])
        assert (start["inputs"], start["outputs"]) == (complete["inputs"], complete["outputs"])
        (output,) = complete["outputs"]
        assert output["namespace"] == "file"
        folder = Path(output["name"])
        receipt = json.loads((folder / "receipt.json").read_bytes())
        contents[name_artifact(complete)] = receipt["content"]
        assert output["facets"]["version"]["datasetVersion"] == receipt["content"]
        statistics = output["outputFacets"]["outputStatistics"]
        assert statistics["size"] == sum(file["bytes"] for file in receipt["files"])
        assert statistics["fileCount"] == len(receipt["files"])
    assert len({event["run"]["runId"] for event in server.got}) == len(names)
    assert [event["job"]["name"] for event in server.got[::2]] == [*["notices/notices"] * 3, "notices/board"]
    inputs = {
        one["name"].partition("/artifacts/")[2]: one["facets"]["version"]["datasetVersion"]
        for one in server.got[-1]["inputs"]
    }
    assert inputs == {name: contents[name] for name in names[:3]}


def test_an_artifact_that_is_up_to_date_has_no_events(board: NoticeBoard, server: Webhook) -> None:
    build(board, server.url)
    server.got.clear()
    build(board, server.url)
    assert server.got == []
    board.say("n-1", "other words")
    build(board, server.url)
    assert [name_artifact(event) for event in server.got[::2]] == ["notices/notices/n-1", "notices/board"]


def test_events_are_appended_to_a_file(board: NoticeBoard, tmp_path: Path) -> None:
    pytest.importorskip("openlineage.client", reason="the extra `openlineage` is not installed")
    build(board, str(tmp_path / "events.jsonl"))
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["eventType"] for event in events] == ["START", "COMPLETE"] * 4


def test_the_key_of_a_server_comes_from_the_environment(
    board: NoticeBoard, server: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(API_KEY, "a-secret")
    assert not [line for line in build(board, server.url) if "lineage" in line]
    assert "a-secret" not in json.dumps(server.got)


def test_a_server_that_cannot_be_reached_is_reported_and_fails_nothing(board: NoticeBoard) -> None:
    pytest.importorskip("openlineage.client", reason="the extra `openlineage` is not installed")
    target = f"http://127.0.0.1:{free_port()}"
    lines = [line for line in build(board, target) if line.startswith("lineage.openlineage")]
    assert [line.partition("were not sent")[0] for line in lines] == [
        "lineage.openlineage: the events of 3 artifacts ",
        "lineage.openlineage: the events of 1 artifact ",
    ]
    assert_names(lines[0], target)
    assert board.store.receipt(board.declaration.artifact("board")) is not None


def test_a_refused_event_is_reported(board: NoticeBoard, server: Webhook) -> None:
    server.status = 422
    lines = build(board, server.url)
    assert_names("\n".join(lines), server.url, 422)


def test_an_event_is_sent_again_to_a_server_that_is_busy(board: NoticeBoard, server: Webhook) -> None:
    server.failures = 2
    assert not [line for line in build(board, server.url) if line.startswith("lineage.openlineage")]
    assert [event["eventType"] for event in server.got] == ["START", "COMPLETE"] * 4


@pytest.mark.parametrize(
    "target",
    [
        "https://user:a-secret@example.org",
        "https://example.org/?api_key=a-secret",
        "https://example.org/#a-secret",
        "ftp://example.org/a-secret",
        "example.org:5000",
        "http://",
    ],
)
def test_a_url_with_credentials_is_refused_without_repeating_it(target: str) -> None:
    with raises(ValidationError, "without credentials", API_KEY) as raised:
        LineageDeclaration(openlineage=target)
    (mistake,) = raised.value.errors(include_input=False)
    assert "a-secret" not in mistake["msg"]


def test_events_are_not_sent_unencrypted_to_another_machine(
    board: NoticeBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openlineage.client", reason="the extra `openlineage` is not installed")
    lines = build(board, "http://lineage.example.org")
    assert_names("\n".join(lines), "lineage.openlineage", "http://lineage.example.org", "unencrypted", ALLOW_HTTP)
    monkeypatch.setenv(ALLOW_HTTP, "true")
    check_target("http://lineage.example.org")


@pytest.mark.parametrize("end", ["", "/"])
def test_the_path_of_a_server_is_kept(board: NoticeBoard, server: Webhook, end: str) -> None:
    build(board, f"{server.url}/marquez{end}")
    assert {*server.paths} == {"/marquez/api/v1/lineage"}


def test_a_declaration_without_a_system_is_refused() -> None:
    with raises(ValidationError, "openlineage", "wandb"):
        LineageDeclaration.model_validate({})


def test_without_the_extra_the_message_has_the_command(
    board: NoticeBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(board, str(tmp_path / "events"))
    monkeypatch.setitem(sys.modules, "openlineage", None)
    with raises(ConfigError, "pip install 'dataprep-assets[openlineage]'"):
        check_target("events.jsonl")
    store = board.store
    assert isinstance(store, LocalArtifacts)
    sender = OpenLineage(str(tmp_path / "other"), store)
    sender.send(store.require(board.declaration.artifact("board")), None)
    with raises(TransferError, 1, "pip install 'dataprep-assets[openlineage]'"):
        sender.finish()


def test_references_to_built_artifacts_are_logged_to_wandb(
    board: NoticeBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="the extra `wandb` is not installed")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    lines = build(board, wandb={"project": "lineage", "mode": "offline"})
    assert not [line for line in lines if "wandb" in line]
    logs = [path.read_bytes() for path in tmp_path.glob("wandb/offline-run-*/*.wandb")]
    assert len(logs) == 2
    for name, partition in [("notices", "n-0"), ("notices", "n-1"), ("notices", "n-2"), ("board", None)]:
        artifact = board.declaration.artifact(name, partition)
        content = board.store.require(artifact).content
        assert any(
            f"notices.{name}".encode() in log
            and content.encode() in log
            and f"file://{board.store.location(artifact)}".encode() in log
            for log in logs
        )


def test_without_wandb_the_artifacts_are_built_and_the_message_has_the_command(
    board: NoticeBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    lines = build(board, wandb={"project": "lineage"})
    assert_names("\n".join(lines), "pip install 'dataprep-assets[wandb]'")
    assert board.store.receipt(board.declaration.artifact("board")) is not None


def test_without_a_declaration_the_client_is_not_imported(board: NoticeBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openlineage", None)
    assert board.materialize()


def test_a_sensitive_dataset_sends_no_events() -> None:
    value = {"dataset": "notes", "sensitive": True, "lineage": {"openlineage": "https://example.org"}}
    with raises(ValidationError, "lineage", "sensitive: true"):
        DatasetDeclaration.model_validate(value)


def test_a_file_is_relative_to_the_declaration(tmp_path: Path) -> None:
    value = {"dataset": "books", "storage": "artifacts", "lineage": {"openlineage": "events.jsonl"}}
    declaration = DatasetDeclaration.model_validate(value).resolve_paths(tmp_path)
    assert declaration.lineage == LineageDeclaration(openlineage=str(tmp_path / "events.jsonl"))
    assert declaration.storage == str(tmp_path / "artifacts")
    url = DatasetDeclaration.model_validate({"dataset": "books", "lineage": {"openlineage": "https://example.org"}})
    assert url.resolve_paths(tmp_path) == url
