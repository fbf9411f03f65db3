"""The same blend gives the same bytes for any number of workers, in any folder, and after any kill."""

import shutil
import signal
from pathlib import Path

import pytest

from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.blend.dataset import build_blend_specs
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets_tests import forked
from dataprep_assets_tests.fakes.hub_server import HubServer
from dataprep_assets_tests.faults.armed import Role, make_armed_environment, read_log
from dataprep_assets_tests.pipelines.blend.pipeline import (
    declare_pretraining,
    finish_blend,
    run_blend,
    write_rows,
    write_small_sources,
)
from dataprep_assets_tests.pipelines.corpus.pipeline import data_files, debris, receipts


def _reinforcement(folder: Path) -> BlendDeclaration:
    rows = [{"responses_create_params": {"input": [{"role": "user", "content": f"q{i}"}]}, "id": i} for i in range(40)]
    write_rows(folder / "train-0.jsonl", rows)
    write_rows(folder / "test-0.parquet", rows[:9])
    return declare_pretraining(
        folder,
        stage="rl",
        tokenizer=None,
        pretrain=None,
        rl={"transforms": ["nemotron_rl"], "compression": "zstd"},
        blend={"datasets": [{"name": "a", "path": str(folder)}]},
    )


STAGES = {"pretrain": lambda folder: declare_pretraining(write_small_sources(folder)), "rl": _reinforcement}


def _rooted(files: dict[str, bytes], root: Path) -> dict[str, bytes]:
    """Return the files without those that contain the path of the run, such as `blend.json`."""
    return {name: data.replace(str(root).encode(), b"ROOT") for name, data in files.items()}


@pytest.mark.parametrize("stage", STAGES)
def test_the_number_of_workers_does_not_change_the_bytes(tmp_path: Path, stage: str) -> None:
    blend = STAGES[stage](tmp_path / "s")
    roots = [tmp_path / f"out{workers}" for workers in (1, 2, 5)]
    for workers, root in zip((1, 2, 5), roots, strict=True):
        finish_blend(blend, root, workers)
    files = [_rooted(data_files(root), root) for root in roots]
    assert files[0] == files[1] == files[2]


def test_a_moved_source_changes_no_shard(tmp_path: Path) -> None:
    first = declare_pretraining(write_small_sources(tmp_path / "s"))
    finish_blend(first, tmp_path / "out")
    before = data_files(tmp_path / "out" / "small_blend" / "indexed_bins")
    shutil.move(tmp_path / "s", tmp_path / "moved")
    outcome, _ = run_blend(declare_pretraining(tmp_path / "moved"), tmp_path / "out")
    assert not [name for name in outcome.built if name.startswith(("indexed_bins", "blend_snapshot"))]
    assert data_files(tmp_path / "out" / "small_blend" / "indexed_bins") == before


def test_a_hub_blend_has_the_bytes_of_the_local_one_at_the_pinned_commit(tmp_path: Path) -> None:
    sources = write_small_sources(tmp_path / "s")
    tree = {p.relative_to(sources / "code").as_posix(): p.read_bytes() for p in (sources / "code").iterdir()}
    local = {"datasets": [{"name": "code", "path": str(sources / "code")}]}
    finish_blend(declare_pretraining(sources, blend=local), tmp_path / "local")
    with HubServer(tree, repo_id="org/code") as hub:
        remote = declare_pretraining(
            sources,
            blend={"datasets": [{"name": "code", "path": "hf://org/code"}]},
            sources={"hub_endpoint": hub.endpoint, "hub_cache": str(tmp_path / "cache")},
        )
        _, _, plan = finish_blend(remote, tmp_path / "remote")
        bins = [data_files(tmp_path / where / "small_blend" / "indexed_bins") for where in ("local", "remote")]
        assert bins[0] == bins[1]
        commit = hub.commit
        hub.move_branch({"part-2.jsonl": b'{"text": "moved"}\n'})
        assert list(find_stale(build_blend_specs(remote), LocalArtifacts(tmp_path / "remote"))) == []
        # This run lists the Hub again, and finds that the branch has moved.
        again, _ = run_blend(remote, tmp_path / "remote")
    assert (plan.units[0].commit, again.built[0]) == (commit, "blend_plan")


def _killed(home: Path, root: Path, declaration: Path, role: Role, at: int) -> tuple[int, int]:
    """Run a blend that kills itself at a write point; return its exit code and the points it passed."""
    command = ["-m", "dataprep_assets_tests.pipelines.blend.pipeline", declaration, root, "1"]
    done = forked.run(command, env=make_armed_environment(home, root, role, at), timeout=600)
    return done.returncode, len(read_log(home, role))


@pytest.mark.slow
@pytest.mark.parametrize("role", ["parent", "worker"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_run_resumes_with_the_same_bytes(tmp_path: Path, stage: str, role: Role) -> None:
    blend = STAGES[stage](tmp_path / "s")
    declaration = tmp_path / "blend.json"
    declaration.write_text(blend.model_dump_json())
    whole = tmp_path / "whole"
    code, points = _killed(tmp_path / "undisturbed", whole, declaration, role, 0)
    assert code == 0
    wanted = _rooted(data_files(whole), whole)
    assert points > 20
    for number in range(3):
        at = 1 + number * (points - 1) // 2
        root = tmp_path / f"root{number}"
        code, _ = _killed(tmp_path / f"kill{number}", root, declaration, role, at)
        assert code == (-signal.SIGKILL if role == "parent" else 0), at
        outcome, _ = run_blend(blend, root)
        assert not outcome.failed
        assert _rooted(data_files(root), root) == wanted
        again, _ = run_blend(blend, root)
        assert not again.built
        assert debris(root) == []


def test_receipts_differ_only_in_measured_values(tmp_path: Path) -> None:
    blend = declare_pretraining(write_small_sources(tmp_path / "s"), trainer_root="/mnt")
    finish_blend(blend, tmp_path / "a", 1)
    finish_blend(blend, tmp_path / "b", 2)
    assert receipts(tmp_path / "a") == receipts(tmp_path / "b")
