"""Failures of the Hub during a publication: temporary ones are retried, and a killed or refused upload resumes."""

from dataclasses import replace
from typing import Any

import pytest

from dataprep_assets.engine.publishing import repository
from dataprep_assets.engine.publishing.repository import Repository
from dataprep_assets.errors import IntegrityError, TransferError
from dataprep_assets_tests.engine.publishing.conftest import REPO, Published
from dataprep_assets_tests.fakes.hub_server import HubServer
from dataprep_assets_tests.messages import raises

REQUESTS = {
    **dict.fromkeys(("revision", "tree", "refs"), "GET"),
    **dict.fromkeys(("create", "validate", "preupload", "batch", "commit", "tag"), "POST"),
    "upload": "PUT",
}


@pytest.mark.parametrize(
    "fault", [{"kind": "status", "status": 429, "retry_after": "0"}, {"kind": "status"}, {"kind": "reset"}]
)
def test_a_temporary_failure_of_each_request_is_retried(
    corpus: Published, monkeypatch: pytest.MonkeyPatch, fault: dict[str, Any]
) -> None:
    monkeypatch.setattr(repository, "RETRY", replace(repository.RETRY, attempts=len(REQUESTS) + 1))
    for name, method in REQUESTS.items():
        corpus.hub.fail(name, method=method, **fault)
    assert corpus.run() == ["published"]
    assert corpus.hub.unspent() == []
    assert len(corpus.hub.operations) == 1
    assert all(finding.passed for finding in corpus.check().values())


@pytest.mark.parametrize("name", ["commit", "tag"])
def test_a_commit_or_tag_whose_answer_is_lost_is_not_made_twice(corpus: Published, name: str) -> None:
    corpus.hub.fail(name, "lost", method="POST")
    corpus.run()
    assert corpus.hub.unspent() == []
    assert len(corpus.hub.operations) == 1
    assert len(corpus.hub.tags) == 1
    assert all(finding.passed for finding in corpus.check().values())


def test_an_interrupted_upload_sends_only_the_missing_files(corpus: Published) -> None:
    hub = corpus.hub
    hub.fail("upload", "reset", method="PUT", first=5, times=None)
    with raises(TransferError, "hf://datasets/org/corpus", hub.endpoint):
        corpus.run()
    finished = len(corpus.uploads())
    assert finished == 4
    assert hub.operations == []
    hub.heal()
    since = len(hub.log)
    corpus.run()
    assert len(corpus.uploads(since)) == len([key for key, _ in hub.operations[0] if key == "lfsFile"]) - finished


def test_a_hub_that_cannot_be_reached_is_reported_with_its_url(corpus: Published) -> None:
    unreachable = "http://127.0.0.1:9"
    with raises(TransferError, f"hf://datasets/{REPO}", unreachable):
        corpus.declare(endpoint=unreachable).run()


def test_large_files_are_sent_in_parts(corpus: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus.hub, "part_bytes", 10_000)
    corpus.hub.fail("upload", "reset", method="PUT", first=3)
    corpus.run()
    assert corpus.hub.count("complete", "POST") > 0
    assert all(finding.passed for finding in corpus.check().values())


def interrupt(monkeypatch: pytest.MonkeyPatch, hub: HubServer, change: dict[str, bytes]) -> None:
    """Let something else commit files between the comparison and the next commit."""
    commit, remaining = Repository._commit, [change]

    def after_change(self: Repository, *args: object) -> None:
        if remaining:
            hub.move_branch({**hub.tree, **remaining.pop()}, parent=hub.commit)
        commit(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(repository.Repository, "_commit", after_change)


def test_a_conflicting_commit_of_other_files_is_kept(corpus: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus.run()
    hub = corpus.hub
    interrupt(monkeypatch, hub, {"LICENSE": b"CC0\n"})
    corpus.declare(attributes={"description": "More about the corpus."}).run()
    assert [entry.status for entry in hub.log if entry.name == "commit"] == [200, 412, 200]
    assert hub.tree["LICENSE"] == b"CC0\n"
    assert b"More about the corpus." in hub.tree["README.md"]


def test_a_conflicting_commit_of_the_same_file_is_not_replaced(
    corpus: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus.run()
    hub = corpus.hub
    interrupt(monkeypatch, hub, {"README.md": b"edited"})
    with raises(IntegrityError, "hf://datasets/org/corpus/README.md"):
        corpus.declare(attributes={"description": "More about the corpus."}).run()
    assert hub.tree["README.md"] == b"edited"


def test_a_first_commit_by_something_else_is_not_replaced(corpus: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = corpus.hub
    interrupt(monkeypatch, hub, {"data.csv": b"theirs"})
    with raises(IntegrityError, f"hf://datasets/{REPO}", "data.csv"):
        corpus.run()
    assert hub.tree.keys() == {".gitattributes", "data.csv"}
