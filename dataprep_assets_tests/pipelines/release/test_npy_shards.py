"""npy shards are the token stream, cut: nothing lost, nothing twice, whatever the seed, size and order of work."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dataprep_assets.errors import IntegrityError, WorkerDiedError
from dataprep_assets.execution.processes import Meter
from dataprep_assets.formats import npy_shards, sample_ids
from dataprep_assets.pipelines.corpus.token_bins import ENDS, TOKENS, ShardResult
from dataprep_assets.pipelines.release import order
from dataprep_assets.pipelines.release.layout import ReleaseLayout
from dataprep_assets.pipelines.release.npy_shards import (
    build_npy_shard,
    build_npy_shards,
    planned_shards,
    shard_artifact,
    shard_key,
    stale_shards,
)
from dataprep_assets_tests.pipelines.release.conftest import LENGTH, Bins


def shards_of(
    bins: Bins, declared: Any, layout: ReleaseLayout, split: str
) -> list[tuple[NDArray[Any], dict[str, Any]]]:
    """Each shard's array, as NumPy itself loads it, and its facts."""
    found = []
    for cut in layout.splits[split].cuts:
        artifact = shard_artifact(declared, f"{split}_{cut.index:06d}")
        path = bins.store.directory(artifact) / f"{split}_{cut.index:06d}.npy"
        found.append((np.load(path, mmap_mode="r"), dict(bins.store.require(artifact).facts)))
    return found


@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_unshuffled_shards_are_the_stream_of_the_source(bins: Bins, tmp_path: Path, tail: str) -> None:
    own = bins.copied(tmp_path)
    declared = own.declare(shuffle_seed=None, tail=tail)
    layout = own.build(declared)
    for split in declared.splits:
        stream = np.concatenate(own.documents(declared, split))
        shards = shards_of(own, declared, layout, split)
        joined = np.concatenate([tokens for tokens, _ in shards])
        last = shards[-1][1]
        kept = len(stream) - last["tail_dropped_tokens"]
        assert np.array_equal(joined[: len(joined) - last["padding_tokens"]], stream[:kept])
        assert (joined[kept:] == layout.separator_id).all()
        assert len(joined) % LENGTH == 0
        assert (last["tail_dropped_tokens"] == 0) == (tail == "pad" or len(stream) % LENGTH == 0)


@pytest.mark.parametrize("mix", [1, 2, 8])
def test_shuffled_shards_hold_every_document_once_and_whole(bins: Bins, tmp_path: Path, mix: int) -> None:
    own = bins.copied(tmp_path)
    declared = own.declare(mix=mix, tail="pad")
    layout = own.build(declared)
    joined = np.concatenate([tokens for tokens, _ in shards_of(own, declared, layout, "train")])
    joined = joined[: layout.splits["train"].order.tokens]
    ends = np.flatnonzero(joined == layout.separator_id) + 1
    documents = [d.tobytes() for d in np.split(joined, ends)[:-1]]
    source = [d.tobytes() for d in own.documents(declared, "train")]
    assert sorted(documents) == sorted(source)
    assert documents != source


def test_sample_ids_are_those_of_the_original_loop(bins: Bins, tmp_path: Path) -> None:
    import hashlib

    own = bins.copied(tmp_path)
    declared = own.declare()
    own.build(declared)
    folder = own.store.directory(shard_artifact(declared, "train_000000"))
    tokens = np.load(folder / "train_000000.npy").astype("<u4")
    loop = [
        int.from_bytes(hashlib.blake2b(tokens[k : k + LENGTH].tobytes(), digest_size=8).digest(), "little")
        for k in range(0, len(tokens), LENGTH)
    ]
    assert sample_ids.open_sample_ids(folder / "sample_ids_000000.bin", len(loop)).tolist() == loop


def test_bytes_do_not_depend_on_the_order_of_work_or_on_the_block(
    bins: Bins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digests(own: Bins, partitions: list[str]) -> dict[str, str]:
        declared = own.declare()
        layout = own.layout(declared)
        receipts = {p: build_npy_shard(declared, own.store, layout, p)[0] for p in partitions}
        return {p: receipts[p].content for p in sorted(receipts)}

    first, second = bins.copied(tmp_path / "a"), bins.copied(tmp_path / "b")
    partitions = first.layout(first.declare()).partitions
    usual = digests(first, partitions)
    order.shuffled.cache_clear()
    monkeypatch.setattr(order, "BLOCK", 37)
    assert digests(second, partitions[::-1]) == usual


def contents(own: Bins, declared: Any, layout: ReleaseLayout) -> dict[str, str]:
    """The content of each shard, by what its files hold now."""
    found = {}
    for partition in layout.partitions:
        receipt = own.store.intact(shard_artifact(declared, partition))
        assert receipt is not None
        found[partition] = receipt.content
    return found


def build_on(
    own: Bins, declared: Any, workers: int, on_progress: Callable[[Meter, int], None] | None = None
) -> dict[str, ShardResult]:
    layout = own.layout(declared)
    works = planned_shards(declared, own.store, layout, layout.partitions, workers=workers)
    return {r.partition: r for r in build_npy_shards(works, workers=workers, on_progress=on_progress)}


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


def test_progress_counts_what_was_read_and_ends_at_all_of_it(bins: Bins, tmp_path: Path) -> None:
    own = bins.copied(tmp_path)
    declared = own.declare(tokens_per_shard=512 * LENGTH)
    last: list[Meter] = []
    build_on(own, declared, 2, lambda meter, workers: last.append(meter))
    layout = own.layout(declared)
    tokens = sum(cut.tokens for split in layout.splits.values() for cut in split.cuts)
    assert (last[-1].done["tokens"], last[-1].done["source_bytes"]) == (tokens, last[-1].total_source_bytes)
    assert "tokens/s" in last[-1].line(2)
    build_on(own, declared, 2, lambda meter, workers: last.append(meter))
    assert last[-1].fraction == 1.0


def test_a_worker_killed_among_several_shards_leaves_only_whole_ones_and_a_second_run_the_same_bytes(
    bins: Bins, tmp_path: Path
) -> None:
    own, other = bins.copied(tmp_path / "killed"), bins.copied(tmp_path / "usual")
    declared = own.declare(tokens_per_shard=512 * LENGTH)
    killed: list[int] = []

    def kill_one(meter: Meter, workers: int) -> None:
        if not killed and meter.done["tokens"]:
            children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
            pids = [pid for pid in children if b"execution.processes" in Path(f"/proc/{pid}/cmdline").read_bytes()]
            assert len(pids) == 3
            killed.append(int(pids[-1]))
            os.kill(killed[0], signal.SIGKILL)

    with pytest.raises(WorkerDiedError, match=r"(train|val|test)_\d{6}: its worker process died \(killed by signal 9"):
        build_on(own, declared, 3, kill_one)
    layout = own.layout(declared)
    there = {p for p in layout.partitions if own.store.receipt(shard_artifact(declared, p))}
    assert len(there) < len(layout.partitions)
    results = build_on(own, declared, 3)
    assert {p for p, result in results.items() if result.reused} == there
    build_on(other, declared, 1)
    assert contents(own, declared, layout) == contents(other, declared, layout)
    folder = own.root / declared.dataset / "npy_shards"
    held = {p.relative_to(folder) for p in folder.rglob("*") if p.is_file()}
    usual = other.root / declared.dataset / "npy_shards"
    assert held == {p.relative_to(usual) for p in usual.rglob("*") if p.is_file()}


def flip(path: Path) -> None:
    """Change one byte in place: neither the size nor the time of the last change says so."""
    before = path.stat()
    with open(path, "r+b") as file:
        file.seek(before.st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(("seed", "name"), [(None, TOKENS), (7, TOKENS), (7, ENDS)])
def test_a_shard_is_not_cut_from_token_bins_that_are_not_their_receipts(
    bins: Bins, tmp_path: Path, seed: int | None, name: str
) -> None:
    own = bins.copied(tmp_path)
    declared = own.declare(shuffle_seed=seed, mix=1, tokens_per_shard=512 * LENGTH)
    layout = own.layout(declared)
    flip(own.store.directory(declared.artifact("token_bins", "train-00001")) / name)
    read = {
        p
        for p in layout.partitions
        for split, cut in [layout.find(p)]
        for group, _, _ in split.order.stretch(cut.start, cut.stop)
        if any(shard.partition == "train-00001" for shard in group)
    }
    results = build_on(own, declared, 2)
    assert {p for p, result in results.items() if result.error} == read < set(layout.partitions)
    for partition in read:
        error = results[partition].error
        assert isinstance(error, IntegrityError)
        assert f"sample_corpus/token_bins/train-00001/{name}: its bytes do not match its receipt" in str(error)
        assert own.store.receipt(shard_artifact(declared, partition)) is None


def test_damage_after_the_first_shard_was_cut_is_noticed_at_the_next(bins: Bins, tmp_path: Path) -> None:
    """One process reads the same files for many shards, and proves them again when they have changed."""
    own = bins.copied(tmp_path)
    declared = own.declare(shuffle_seed=None)
    layout = own.layout(declared)
    build_npy_shard(declared, own.store, layout, "train_000000")
    flip(own.store.directory(declared.artifact("token_bins", "train-00000")) / TOKENS)
    with pytest.raises(IntegrityError, match=r"token_bins/train-00000/tokens\.bin: its bytes"):
        build_npy_shard(declared, own.store, layout, "train_000001")


@pytest.mark.parametrize("size", [None, 7])
def test_token_bins_that_are_gone_or_cut_are_named(bins: Bins, tmp_path: Path, size: int | None) -> None:
    own = bins.copied(tmp_path)
    declared = own.declare(shuffle_seed=None)
    layout = own.layout(declared)
    path = own.store.directory(declared.artifact("token_bins", "train-00000")) / TOKENS
    if size is None:
        path.unlink()
    else:
        os.truncate(path, size)
    with pytest.raises(IntegrityError, match=r"token_bins/train-00000/tokens\.bin: .*Materialize"):
        build_npy_shard(declared, own.store, layout, "train_000000")


def test_the_seeded_order_is_the_same_with_every_numpy() -> None:
    assert order._splitmix(0, 3).tolist() == [16294208416658607535, 7960286522194355700, 487617019471545679]


def test_another_seed_is_another_order_and_another_key(bins: Bins) -> None:
    first, second = bins.declare(shuffle_seed=1), bins.declare(shuffle_seed=2)
    keys = [shard_key(d, bins.layout(d), "train_000000") for d in (first, second)]
    assert keys[0] != keys[1]
    read = [
        np.concatenate(list(bins.layout(d).splits["train"].order.read(bins.store, 0, 4096))) for d in (first, second)
    ]
    assert not np.array_equal(*read)


def test_a_finished_shard_is_current_and_a_changed_source_shard_makes_it_stale(bins: Bins, tmp_path: Path) -> None:
    own = bins.copied(tmp_path)
    declared = own.declare(shuffle_seed=None)
    layout = own.build(declared)
    assert not list(stale_shards(declared, own.store, layout))
    assert build_npy_shard(declared, own.store, layout, "val_000000")[1]
    split = layout.splits["train"]
    first = replace(split.order.groups[0][0], content="0" * 64)
    changed = replace(
        layout,
        splits={
            **layout.splits,
            "train": replace(split, order=replace(split.order, groups=((first,), *split.order.groups[1:]))),
        },
    )
    stale = list(stale_shards(declared, own.store, changed))
    assert "sample_corpus/npy_shards/train_000000" in stale
    assert f"sample_corpus/npy_shards/{layout.partitions[len(split.cuts) - 1]}" not in stale


def test_the_last_partial_shard_is_whole_sequences(bins: Bins, tmp_path: Path) -> None:
    """The original's final shard has whatever length remains, and is unloadable."""
    own = bins.copied(tmp_path)
    declared = own.declare()
    layout = own.build(declared)
    cut = layout.splits["train"].cuts[-1]
    assert 0 < cut.tokens < declared.release.tokens_per_shard
    folder = own.store.directory(shard_artifact(declared, layout.partitions[cut.index]))
    npy_shards.open_shard(folder / f"train_{cut.index:06d}.npy", sequence_length=LENGTH)


def test_receipts_name_inputs_and_count_the_tail(bins: Bins, tmp_path: Path) -> None:
    own = bins.copied(tmp_path)
    declared = own.declare()
    layout = own.build(declared)
    partition = layout.partitions[len(layout.splits["train"].cuts) - 1]
    receipt = own.store.require(shard_artifact(declared, partition))
    assert receipt.facts["tail_dropped_tokens"] == layout.splits["train"].order.tokens % LENGTH
    assert set(receipt.inputs) <= set(own.manifest(declared).plan)
    json.dumps(dict(receipt.facts))
