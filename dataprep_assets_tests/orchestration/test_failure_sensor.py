"""Reports of failed runs, over HTTP and SMTP, to servers on the loopback interface."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dataprep_assets.engine.privacy import find_private_file
from dataprep_assets.orchestration.partitions import DATASET
from dataprep_assets.orchestration.sensors.automation import DELIVERY_TIMEOUT_SECONDS
from dataprep_assets_tests.fakes.listeners import MailServer, Webhook, run_mail_server, run_webhook
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.orchestration.notice_board import NoticeBoard, make_notice_board
from dataprep_assets_tests.servers import free_port

SENSOR = "notices_on_failure"


@pytest.fixture(scope="module")
def listening() -> Iterator[Webhook]:
    with run_webhook() as made:
        yield made


@pytest.fixture
def hook(listening: Webhook) -> Webhook:
    """Return a webhook that has received nothing and answers 204."""
    listening.got.clear()
    listening.status, listening.slow = 204, 0.0
    return listening


@pytest.fixture(scope="module")
def post_office() -> Iterator[MailServer]:
    with run_mail_server() as made:
        yield made


def make_board(folder: Path, on_failure: dict[str, Any], **more: Any) -> Any:
    return make_notice_board(folder, automation={"on_failure": on_failure}, **more)


def build_run(board: NoticeBoard, *, failed: bool = True, dataset: str = "notices") -> dg.DagsterRun:
    """Create a failed run of the dataset's job."""
    job = board.definitions.get_repository_def().get_job("build_notices")
    run = board.instance.create_run_for_job(job, tags={DATASET: dataset})
    if failed:
        board.instance.report_run_failed(run)
    return run


def start_cursor(board: NoticeBoard) -> str:
    """Return the sensor's cursor after its first tick, which reports no past failures."""
    first = board.tick(SENSOR)
    assert not first.dagster_run_reactions
    return str(first.cursor)


def read_errors(tick: Any) -> list[str]:
    """Return the errors of a tick's reports; an empty one for each delivered report."""
    return ["" if one.error is None else one.error.message.strip() for one in tick.dagster_run_reactions]


def test_a_failed_run_is_posted_once(tmp_path: Path, hook: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAPREP_UI_URL", "https://dagster.example.org/team/")
    # Use an instance on disk, because an instance in memory has one event log for all runs.
    with make_board(tmp_path, {"webhook": hook.url}, home=tmp_path / "home") as board:
        cursor = start_cursor(board)
        (board.declaration.folder / "n-1.txt").unlink()
        failed = board.run(board.specs[0], partitions=("n-0", "n-2"))
        tick = board.tick(SENSOR, cursor)
        assert read_errors(tick) == [""]
        (message,) = hook.got
        words = "1 of 3 notices failed; the others are finished and kept. n-1: n-1.txt: is not there"
        assert message == {
            "text": f"notices: run {failed.run_id[:8]} of __ASSET_JOB failed in notices__notices for n-0...n-2: "
            + words,
            "dataset": "notices",
            "run_id": failed.run_id,
            "job": "__ASSET_JOB",
            "steps": ["notices__notices"],
            "partitions": "n-0...n-2",
            "failed_checks": [],
            "error": words,
            "will_retry": False,
            "link": f"https://dagster.example.org/team/runs/{failed.run_id}",
        }
        assert read_errors(board.tick(SENSOR, tick.cursor)) == []
        assert len(hook.got) == 1


def test_a_failed_blocking_check_is_reported(tmp_path: Path, hook: Webhook) -> None:
    with make_board(tmp_path, {"webhook": hook.url}) as board:
        cursor = start_cursor(board)
        board.say("n-1", "")
        assert not board.materialize()
        board.tick(SENSOR, cursor)
        (message,) = hook.got
        assert message["failed_checks"] == [
            {
                "asset": "notices/notices",
                "check": "has_words",
                "finding": "1 of 3 notices fails; the first is n-1: 0 words",
            }
        ]
        assert "(blocking checks: has_words of notices/notices)" in message["text"]


def test_a_report_about_a_sensitive_dataset_quotes_nothing(tmp_path: Path, hook: Webhook) -> None:
    canary = "CANARY-Jane-Doe-4711"
    with make_board(tmp_path / canary, {"webhook": hook.url}, sensitive=True, n_0=canary) as board:
        cursor = start_cursor(board)
        (board.declaration.folder / "n-1.txt").unlink()
        (board.declaration.folder / "n-1.txt").mkdir()  # the error contains the path
        (failure,) = board.executed().failures
        assert canary not in failure.why
        assert canary in find_private_file("notices", board.store).read_text()
        tick = board.tick(SENSOR, cursor)
        (message,) = hook.got
        assert message["error"] is None
        assert message["text"].endswith("failed in notices")
        assert canary not in json.dumps([message, read_errors(tick), tick.cursor])


def test_without_an_address_the_link_is_a_path_and_a_wrong_address_is_reported(
    tmp_path: Path, hook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_board(tmp_path, {"webhook": hook.url}) as board:
        cursor = start_cursor(board)
        run = build_run(board)
        monkeypatch.setenv("DATAPREP_UI_URL", "dagster.example.org")
        told = board.tick(SENSOR, cursor)
        assert "DATAPREP_UI_URL='dagster.example.org': must begin with" in read_errors(told)[0]
        monkeypatch.delenv("DATAPREP_UI_URL")
        board.tick(SENSOR, cursor)
        (message,) = hook.got
        assert message["link"] == f"/runs/{run.run_id}"


def test_a_run_of_another_dataset_is_not_reported(tmp_path: Path, hook: Webhook) -> None:
    with make_board(tmp_path, {"webhook": hook.url}) as board:
        cursor = start_cursor(board)
        build_run(board, dataset="others")
        assert read_errors(board.tick(SENSOR, cursor)) == []
        assert hook.got == []


def test_a_webhook_that_fails_is_an_error_of_the_tick(tmp_path: Path, hook: Webhook) -> None:
    with make_board(tmp_path, {"webhook": hook.url}) as board:
        cursor = start_cursor(board)
        run = build_run(board)
        hook.status = 500
        (refused,) = read_errors(board.tick(SENSOR, cursor))
        assert_names(refused, run.run_id[:8], "127.0.0.1", 500)


def test_a_missing_webhook_is_an_error_of_the_tick(tmp_path: Path) -> None:
    with make_board(tmp_path, {"webhook": f"http://127.0.0.1:{free_port()}/secret-path"}) as board:
        cursor = start_cursor(board)
        build_run(board)
        (refused,) = read_errors(board.tick(SENSOR, cursor))
        assert "127.0.0.1 cannot be reached" in refused
        assert "secret-path" not in refused


@pytest.mark.slow
def test_a_hanging_webhook_does_not_block_other_reports(tmp_path: Path, hook: Webhook) -> None:
    with make_board(tmp_path, {"webhook": hook.url}) as board:
        cursor = start_cursor(board)
        build_run(board)
        hook.slow = 60
        began = time.monotonic()
        (refused,) = read_errors(board.tick(SENSOR, cursor))
        assert time.monotonic() - began < DELIVERY_TIMEOUT_SECONDS + 30
        assert "not reported by webhook" in refused


def test_a_mail_is_sent(tmp_path: Path, post_office: MailServer) -> None:
    email = {
        "host": "127.0.0.1",
        "port": post_office.port,
        "tls": "none",
        "from": "data@example.org",
        "to": ["a@example.org", "b@example.org"],
    }
    with make_board(tmp_path, {"email": email}) as board:
        cursor = start_cursor(board)
        board.say("n-1", "")
        failed = board.run(board.specs[0], partitions=("n-0", "n-2"))
        assert read_errors(board.tick(SENSOR, cursor)) == [""]
        (mail,) = post_office.mails
        assert "To: a@example.org, b@example.org" in mail
        assert f"Subject: notices: run {failed.run_id[:8]} failed" in mail
        assert_names(mail, "notices/notices", "has_words", 1, 3, "n-1", 0)
        assert f"Run: /runs/{failed.run_id}" in mail
        post_office.refuse = "550 no such mailbox"
        (refused,) = read_errors(board.tick(SENSOR, cursor))
        assert_names(refused, "SMTPRecipientsRefused")


def test_an_unexpected_error_is_reported_by_its_class_and_stops_no_other_report(
    tmp_path: Path, hook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unforeseen(*_: object) -> None:
        raise KeyError("Müller-1!")

    monkeypatch.setattr("dataprep_assets.orchestration.sensors.automation._send_mail", unforeseen)
    email = {"host": "127.0.0.1", "from": "data@example.org", "to": ["a@example.org"]}
    with make_board(tmp_path, {"webhook": hook.url, "email": email}) as board:
        cursor = start_cursor(board)
        build_run(board)
        (refused,) = read_errors(board.tick(SENSOR, cursor))
        assert_names(refused, "KeyError")
        assert "Müller" not in refused
        assert len(hook.got) == 1


def test_a_password_that_smtp_cannot_send_is_not_repeated(
    tmp_path: Path, post_office: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTICES_USER", "ada")
    monkeypatch.setenv("NOTICES_PASSWORD", "Müller-1!")

    def login(*_: object) -> None:
        "Müller-1!".encode("ascii")  # raises the error of smtplib's login

    monkeypatch.setattr("smtplib.SMTP.starttls", lambda *_, **__: None)
    monkeypatch.setattr("smtplib.SMTP.login", login)
    secrets = {"user": {"env": "NOTICES_USER"}, "password": {"env": "NOTICES_PASSWORD"}}
    email = {"host": "127.0.0.1", "port": post_office.port, "from": "data@example.org", "to": ["a@example.org"]}
    with make_board(tmp_path, {"email": email | secrets}) as board:
        cursor = start_cursor(board)
        build_run(board)
        (refused,) = read_errors(board.tick(SENSOR, cursor))
        assert_names(refused, "UnicodeEncodeError")
        assert "Müller" not in refused


def test_a_name_that_is_not_unicode_is_reported(tmp_path: Path, hook: Webhook, post_office: MailServer) -> None:
    post_office.refuse = ""
    email = {"host": "127.0.0.1", "port": post_office.port, "tls": "none", "from": "a@example.org", "to": ["b@c.org"]}
    with make_board(tmp_path, {"webhook": hook.url, "email": email}) as board:
        cursor = start_cursor(board)
        job = board.definitions.get_repository_def().get_job("build_notices")
        run = board.instance.create_run_for_job(job, tags={DATASET: "notices"})
        board.instance.report_run_failed(run, "caf\udce9.txt cannot be read")
        assert read_errors(board.tick(SENSOR, cursor)) == [""]
        assert "caf\udce9.txt" in hook.got[0]["error"]
        assert "caf\\udce9.txt" in post_office.mails[-1].replace("=\n", "")


def test_a_secret_address_is_read_from_the_environment_and_never_shown(
    tmp_path: Path, hook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_board(tmp_path, {"webhook": {"env": "NOTICES_HOOK"}}) as board:
        cursor = start_cursor(board)
        build_run(board)
        (unset,) = read_errors(board.tick(SENSOR, cursor))
        assert_names(unset, "NOTICES_HOOK")
        monkeypatch.setenv("NOTICES_HOOK", f"http://127.0.0.1:{free_port()}/T0KEN")
        (refused,) = read_errors(board.tick(SENSOR, cursor))
        assert_names(refused, "NOTICES_HOOK")
        assert "T0KEN" not in refused
        monkeypatch.setenv("NOTICES_HOOK", hook.url)
        assert read_errors(board.tick(SENSOR, cursor)) == [""]
