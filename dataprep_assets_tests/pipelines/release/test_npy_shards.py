"""Npy shards from several workers equal those from one, and a failed or killed worker does not affect the others."""

import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.errors import IntegrityError
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.execution.pool import TaskEngine
from dataprep_assets.execution.progress import Progress
from dataprep_assets.pipelines.release.layout import ReleaseLayout
from dataprep_assets.pipelines.release.npy_shard import get_shard_artifact
from dataprep_assets.pipelines.release.npy_shards import build_npy_shards, prepare_npy_shards
from dataprep_assets.stream.token_shard import ENDS, TOKENS
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.release.conftest import LENGTH, Bins
from dataprep_assets_tests.pipelines.release.planted_faults import flip_in_place


def contents(own: Bins, declared: Any, layout: ReleaseLayout) -> dict[str, str]:
    """Return the content of each shard, from its current files."""
    found = {}
    for partition in layout.partitions:
        receipt = own.store.intact_receipt(get_shard_artifact(declared, partition))
        assert receipt is not None
        found[partition] = receipt.content
    return found


def build_on(own: Bins, declared: Any, workers: int, progress: Progress | None = None) -> dict[str, Outcome]:
    layout = own.layout(declared)
    planned = prepare_npy_shards(declared, own.store, layout, layout.partitions, workers=workers)
    return {r.partition: r for r in build_npy_shards(planned, workers=workers, progress=progress)}


@pytest.mark.parametrize("seed", [None, 7])
def test_bytes_do_not_depend_on_the_number_of_workers(bins: Bins, tmp_path: Path, seed: int | None) -> None:
    found = []
    for workers in (1, 3):
        own = bins.copied(tmp_path / str(workers))
        declared = own.declare(shuffle_seed=seed, tokens_per_shard=512 * LENGTH)
        results = build_on(own, declared, workers)
        assert {r.error for r in results.values()} == {None}
        assert not any(r.reused for r in results.values())
        found.append(contents(own, declared, own.layout(declared)))
    alone = bins.copied(tmp_path / "alone")
    layout = alone.build(alone.declare(shuffle_seed=seed, tokens_per_shard=512 * LENGTH))
    assert (
        found[0] == found[1] == contents(alone, alone.declare(shuffle_seed=seed, tokens_per_shard=512 * LENGTH), layout)
    )


def test_finished_shards_need_no_cluster(bins: Bins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = bins.copied(tmp_path)
    declared = own.declare(tokens_per_shard=512 * LENGTH)
    layout = own.build(declared)
    monkeypatch.setitem(sys.modules, "ray", None)
    planned = prepare_npy_shards(declared, own.store, layout, layout.partitions, workers=1)
    outcomes = list(build_npy_shards(planned, workers=1, engine=TaskEngine("ray")))
    assert [(outcome.partition, outcome.reused) for outcome in outcomes] == [(p, True) for p in layout.partitions]


def test_progress_counts_read_tokens_and_ends_at_all_of_them(bins: Bins, tmp_path: Path) -> None:
    own = bins.copied(tmp_path)
    declared = own.declare(tokens_per_shard=512 * LENGTH)
    progress = Progress()
    build_on(own, declared, 2, progress)
    layout = own.layout(declared)
    tokens = sum(cut.tokens for split in layout.splits.values() for cut in split.cuts)
    assert (progress.done["tokens"], progress.done["source_bytes"]) == (tokens, progress.source_bytes)
    assert "of 2 workers" in progress.format_line()
    again = Progress()
    build_on(own, declared, 2, again)
    assert again.fraction == 1.0
    assert again.done["tokens"] == 0


def test_a_killed_worker_changes_no_byte_and_leaves_no_leftovers(bins: Bins, tmp_path: Path) -> None:
    own, other = bins.copied(tmp_path / "killed"), bins.copied(tmp_path / "usual")
    declared = own.declare(tokens_per_shard=512 * LENGTH)
    killed: list[int] = []

    class KillsOne(Progress):
        def show(self) -> None:
            if killed or not self.done["tokens"]:
                return
            pids = [worker.pid for worker in multiprocessing.active_children() if worker.pid is not None]
            assert len(pids) == 3
            killed.append(pids[-1])
            os.kill(killed[0], signal.SIGKILL)

    results = build_on(own, declared, 3, KillsOne())
    layout = own.layout(declared)
    assert killed
    assert results.keys() == set(layout.partitions)
    assert not any(result.reused for result in results.values())
    build_on(other, declared, 1)
    assert contents(own, declared, layout) == contents(other, declared, layout)
    folder = own.root / declared.dataset / "npy_shards"
    held = {p.relative_to(folder) for p in folder.rglob("*") if p.is_file()}
    usual = other.root / declared.dataset / "npy_shards"
    assert held == {p.relative_to(usual) for p in usual.rglob("*") if p.is_file()}


@pytest.mark.parametrize(("seed", "name"), [(None, TOKENS), (7, TOKENS), (7, ENDS)])
def test_a_shard_is_not_cut_from_token_bins_that_contradict_their_receipts(
    bins: Bins, tmp_path: Path, seed: int | None, name: str
) -> None:
    own = bins.copied(tmp_path)
    declared = own.declare(shuffle_seed=seed, mix=1, tokens_per_shard=512 * LENGTH)
    layout = own.layout(declared)
    flip_in_place(own.store.directory(declared.artifact("token_bins", "train-00001")) / name)
    read = {
        p
        for p in layout.partitions
        for split, cut in [layout.find_shard(p)]
        for group, _, _ in split.order.find_groups_between(cut.start, cut.stop)
        if any(shard.partition == "train-00001" for shard in group)
    }
    results = build_on(own, declared, 2)
    assert {p for p, result in results.items() if result.error} == read < set(layout.partitions)
    for partition in read:
        error = results[partition].error
        assert isinstance(error, IntegrityError)
        assert_names(str(error), f"sample_corpus/token_bins/train-00001/{name}", "sha256")
        assert own.store.receipt(get_shard_artifact(declared, partition)) is None
