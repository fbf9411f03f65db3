"""The sources of a blend are polled for changes: folders by their listings, hubs by their commits."""

import os
from pathlib import Path

from dataprep_assets.engine.artifact.spec import EDITED, poll_source
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.blend.plan.blend_plan import build_blend_plan, build_blend_watch
from dataprep_assets_tests.fakes.hub_server import HubServer
from dataprep_assets_tests.pipelines.blend.pipeline import (
    declare_pretraining,
    make_texts,
    write_blend_json,
    write_rows,
    write_small_sources,
)


def test_added_and_removed_files_and_datasets_are_changes(tmp_path: Path) -> None:
    folder, store = write_small_sources(tmp_path / "sources"), LocalArtifacts(tmp_path / "out")
    blend = declare_pretraining(folder)
    assert poll_source(build_blend_watch(blend), store, None).change == "2 datasets not planned yet"
    build_blend_plan(blend, store)
    planned = poll_source(build_blend_watch(blend), store, None)
    assert planned.change == ""
    os.utime(folder / "code" / "part-2.jsonl.zst", ns=(10**9, 10**9))
    assert poll_source(build_blend_watch(blend), store, planned.identity).change == EDITED
    write_rows(folder / "code" / "part-11.jsonl", make_texts("code", 9, 90))
    write_rows(folder / "web" / "train-00000.parquet", make_texts("web", 61))
    assert poll_source(build_blend_watch(blend), store, planned.identity).change == "1 file added, 1 file changed"
    grown = write_blend_json(folder)
    grown["datasets"] = [grown["datasets"][0], {"name": "talk", "path": str(folder / "web")}]
    assert poll_source(build_blend_watch(declare_pretraining(folder, blend=grown)), store, planned.identity).change == (
        "1 file added, 1 dataset new, 1 dataset gone"
    )


def test_a_hub_is_polled_only_for_its_commit_until_that_moves(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "train-0.jsonl", make_texts("code", 40)).read_bytes()
    with HubServer({"train-0.jsonl": rows}, repo_id="org/code") as hub:
        data = {"datasets": [{"name": "code", "path": "hf://org/code"}]}
        sources = {"hub_endpoint": hub.endpoint, "hub_cache": str(tmp_path / "hub")}
        blend, store = (
            declare_pretraining(tmp_path, blend=data, sources=sources, num_shards=1),
            LocalArtifacts(tmp_path / "out"),
        )
        build_blend_plan(blend, store)
        requests = len(hub.log)
        planned = poll_source(build_blend_watch(blend), store, None)
        assert planned.change == ""
        assert {request.name for request in hub.log[requests:]} == {"revision"}
        hub.move_branch({"train-0.jsonl": rows, "README.md": b"words"})
        assert poll_source(build_blend_watch(blend), store, planned.identity).change == ""
        hub.move_branch({"train-0.jsonl": rows, "train-1.jsonl": rows})
        assert poll_source(build_blend_watch(blend), store, planned.identity).change == "1 file added"
