"""A corpus's source is asked for changes: cheaply, without a file read or fetched, and told in words."""

import os
import shutil
from pathlib import Path

from dataprep_assets.engine.artifact.dataset import validate_declaration
from dataprep_assets.engine.artifact.spec import EDITED, PollResult, poll_source
from dataprep_assets.errors import TransferError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.manifest import build_manifest_artifact
from dataprep_assets.pipelines.corpus.source.source_parts import build_corpus_watch
from dataprep_assets_tests.fakes.hub_server import HubServer
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.project import sample_attributes
from dataprep_assets_tests.samples import SMALL
from dataprep_assets_tests.servers import free_port

NEW = "train/chunk2/example_train_2.jsonl.zst"
FIRST = "train/chunk1/example_train_0.jsonl.zst"


def corpus(folder: Path, source: dict[str, object] | None = None) -> CorpusDeclaration:
    """A corpus over a copy of the sample's files in `folder / "data"`, or of another source."""
    if source is None:
        shutil.copytree(SMALL, folder / "data", dirs_exist_ok=True)
        source = {"kind": "local", "path": "data"}
    return validate_declaration(CorpusDeclaration, sample_attributes(source=source), folder / "defs.yaml")


def asked(declaration: CorpusDeclaration, folder: Path, seen: str | None = None) -> PollResult:
    return poll_source(build_corpus_watch(declaration), LocalArtifacts(folder / "artifacts"), seen)


def planned(declaration: CorpusDeclaration, folder: Path) -> None:
    build_manifest_artifact(declaration, LocalArtifacts(folder / "artifacts"))


def test_a_folder_that_gains_a_file(tmp_path: Path) -> None:
    declaration = corpus(tmp_path)
    assert asked(declaration, tmp_path).change == "9 files not planned yet"
    planned(declaration, tmp_path)
    before = asked(declaration, tmp_path)
    assert before.change == ""
    shutil.copy(tmp_path / "data" / FIRST, tmp_path / "data" / NEW)
    (tmp_path / "data" / "notes.txt").write_text("no data file")
    after = asked(declaration, tmp_path, before.identity)
    assert after.change == "1 file added, 1 shard new"
    assert asked(declaration, tmp_path, after.identity) == PollResult(identity=after.identity)
    planned(declaration, tmp_path)
    assert asked(declaration, tmp_path).change == ""


def test_a_file_beside_the_data_changes_nothing(tmp_path: Path) -> None:
    declaration = corpus(tmp_path)
    planned(declaration, tmp_path)
    before = asked(declaration, tmp_path)
    (tmp_path / "data" / "README.md").write_text("about the data")
    assert asked(declaration, tmp_path, before.identity) == before


def test_an_edit_that_keeps_the_size_is_told_by_its_time(tmp_path: Path) -> None:
    declaration = corpus(tmp_path)
    planned(declaration, tmp_path)
    before = asked(declaration, tmp_path)
    os.utime(tmp_path / "data" / FIRST, ns=(10**9, 10**9))
    assert asked(declaration, tmp_path, before.identity).change == EDITED


def test_other_settings_are_no_change_of_the_source(tmp_path: Path) -> None:
    planned(corpus(tmp_path), tmp_path)
    attributes = sample_attributes(source={"kind": "local", "path": "data"}, shards={"count": 1})
    assert asked(validate_declaration(CorpusDeclaration, attributes, tmp_path / "defs.yaml"), tmp_path).change == ""


def hub_source(folder: Path, endpoint: str, revision: str) -> dict[str, str]:
    cache = str(folder / "hub")
    return {"kind": "hub", "repo": "org/corpus", "revision": revision, "endpoint": endpoint, "cache_dir": cache}


def test_a_branch_that_moves_is_one_request_until_it_does(tmp_path: Path) -> None:
    tree = {p.relative_to(SMALL).as_posix(): p.read_bytes() for p in SMALL.rglob("*.zst")}
    with HubServer(tree, repo_id="org/corpus") as hub:
        source = hub_source(tmp_path, hub.endpoint, "main")
        declaration = corpus(tmp_path, source)
        planned(declaration, tmp_path)
        first = asked(declaration, tmp_path)
        assert first.change == ""
        asked_before = len(hub.log)
        assert asked(declaration, tmp_path, first.identity) == first
        assert [request.name for request in hub.log[asked_before:]] == ["revision"]
        old = hub.commit
        hub.move_branch({**tree, NEW: tree[FIRST]})
        moved = asked(declaration, tmp_path, first.identity)
        told = f"the revision changed from {old[:12]} to {hub.commit[:12]}; 1 file added, 1 shard new"
        assert moved.change == told
        assert not any(request.name.endswith(".zst") for request in hub.log)
        planned(declaration, tmp_path)
        hub.move_branch({**tree, NEW: tree[FIRST], "README.md": b"words"})
        assert asked(declaration, tmp_path, moved.identity).change == ""


def test_a_pinned_commit_is_not_asked_again(tmp_path: Path) -> None:
    tree = {p.relative_to(SMALL).as_posix(): p.read_bytes() for p in SMALL.rglob("*.zst")}
    with HubServer(tree, repo_id="org/corpus") as hub:
        declaration = corpus(tmp_path, hub_source(tmp_path, hub.endpoint, hub.commit))
        planned(declaration, tmp_path)
        requests = len(hub.log)
        assert asked(declaration, tmp_path).change == ""
        assert len(hub.log) == requests


def test_a_hub_out_of_reach_is_an_error_of_this_project(tmp_path: Path) -> None:
    source = hub_source(tmp_path, f"http://127.0.0.1:{free_port()}", "main")
    with raises(TransferError, "org/corpus", "main"):
        asked(corpus(tmp_path, source), tmp_path)
