"""An npy shard is its part of the token stream, with no token lost or repeated for any seed, size and order of work."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dataprep_assets.errors import IntegrityError
from dataprep_assets.formats import npy_shards, sample_ids
from dataprep_assets.pipelines.release import order
from dataprep_assets.pipelines.release.layout import ReleaseLayout
from dataprep_assets.pipelines.release.npy_shard import build_npy_shard, build_shard_recipe, get_shard_artifact
from dataprep_assets.stream.token_shard import TOKENS
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.release.conftest import LENGTH, Bins
from dataprep_assets_tests.pipelines.release.planted_faults import flip_in_place


def shards_of(
    bins: Bins, declared: Any, layout: ReleaseLayout, split: str
) -> list[tuple[NDArray[Any], dict[str, Any]]]:
    """Return each shard's array, loaded by NumPy itself, and its facts."""
    found = []
    for cut in layout.splits[split].cuts:
        artifact = get_shard_artifact(declared, f"{split}_{cut.index:06d}")
        path = bins.store.directory(artifact) / f"{split}_{cut.index:06d}.npy"
        found.append((np.load(path, mmap_mode="r"), dict(bins.store.require(artifact).facts)))
    return found


@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_unshuffled_shards_equal_the_stream_of_the_source(bins: Bins, tmp_path: Path, tail: str) -> None:
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


@pytest.mark.parametrize("mix", [1, 8])
def test_shuffled_shards_contain_every_document_once_in_one_piece(bins: Bins, tmp_path: Path, mix: int) -> None:
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


def test_sample_ids_equal_those_of_the_upstream_loop(bins: Bins, tmp_path: Path) -> None:
    import hashlib

    own = bins.copied(tmp_path)
    declared = own.declare()
    own.build(declared)
    folder = own.store.directory(get_shard_artifact(declared, "train_000000"))
    tokens = np.load(folder / "train_000000.npy").astype("<u4")
    loop = [
        int.from_bytes(hashlib.blake2b(tokens[k : k + LENGTH].tobytes(), digest_size=8).digest(), "little")
        for k in range(0, len(tokens), LENGTH)
    ]
    assert sample_ids.open_sample_ids(folder / "sample_ids_000000.bin", len(loop)).tolist() == loop


def test_bytes_do_not_depend_on_the_order_of_work_or_the_block_size(
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
    order.shuffle_documents.cache_clear()
    monkeypatch.setattr(order, "BLOCK", 37)
    assert digests(second, partitions[::-1]) == usual


def test_damage_after_the_first_shard_is_found_at_the_next(bins: Bins, tmp_path: Path) -> None:
    """One process reads the same files for many shards, and verifies them again when they have changed."""
    own = bins.copied(tmp_path)
    declared = own.declare(shuffle_seed=None)
    layout = own.layout(declared)
    build_npy_shard(declared, own.store, layout, "train_000000")
    flip_in_place(own.store.directory(declared.artifact("token_bins", "train-00000")) / TOKENS)
    with raises(IntegrityError, "token_bins/train-00000/tokens.bin"):
        build_npy_shard(declared, own.store, layout, "train_000001")


@pytest.mark.parametrize("size", [None, 7])
def test_missing_and_truncated_token_bins_are_named(bins: Bins, tmp_path: Path, size: int | None) -> None:
    own = bins.copied(tmp_path)
    declared = own.declare(shuffle_seed=None)
    layout = own.layout(declared)
    path = own.store.directory(declared.artifact("token_bins", "train-00000")) / TOKENS
    if size is None:
        path.unlink()
    else:
        os.truncate(path, size)
    with raises(IntegrityError, "token_bins/train-00000/tokens.bin"):
        build_npy_shard(declared, own.store, layout, "train_000000")


def test_the_seeded_order_does_not_depend_on_the_numpy_version() -> None:
    assert order._generate_splitmix(0, 3).tolist() == [16294208416658607535, 7960286522194355700, 487617019471545679]


def test_another_seed_gives_another_order_and_another_key(bins: Bins) -> None:
    first, second = bins.declare(shuffle_seed=1), bins.declare(shuffle_seed=2)
    keys = [build_shard_recipe(d, bins.layout(d), "train_000000").key for d in (first, second)]
    assert keys[0] != keys[1]
    read = [
        np.concatenate(list(bins.layout(d).splits["train"].order.read(bins.store, 0, 4096))) for d in (first, second)
    ]
    assert not np.array_equal(*read)


def outdated(own: Bins, declared: Any, layout: ReleaseLayout) -> set[str]:
    """Return the shards that do not match this layout."""
    recipes = {p: build_shard_recipe(declared, layout, p) for p in layout.partitions}
    return {p for p, recipe in recipes.items() if own.store.find_current(recipe.artifact, recipe.key) is None}


def test_a_finished_shard_is_up_to_date_until_its_source_shard_changes(bins: Bins, tmp_path: Path) -> None:
    own = bins.copied(tmp_path)
    declared = own.declare(shuffle_seed=None)
    layout = own.build(declared)
    assert outdated(own, declared, layout) == set()
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
    behind = outdated(own, declared, changed)
    assert "train_000000" in behind
    assert layout.partitions[len(split.cuts) - 1] not in behind


def test_the_last_partial_shard_consists_of_whole_sequences(bins: Bins, tmp_path: Path) -> None:
    """Upstream's last shard has whatever length remains (docs/formats/npy-shards.md#layout)."""
    own = bins.copied(tmp_path)
    declared = own.declare()
    layout = own.build(declared)
    cut = layout.splits["train"].cuts[-1]
    assert 0 < cut.tokens < declared.release.tokens_per_shard
    folder = own.store.directory(get_shard_artifact(declared, layout.partitions[cut.index]))
    npy_shards.open_shard(folder / f"train_{cut.index:06d}.npy", sequence_length=LENGTH)


def test_receipts_name_inputs_and_count_the_tail(bins: Bins, tmp_path: Path) -> None:
    own = bins.copied(tmp_path)
    declared = own.declare()
    layout = own.build(declared)
    partition = layout.partitions[len(layout.splits["train"].cuts) - 1]
    receipt = own.store.require(get_shard_artifact(declared, partition))
    assert receipt.facts["tail_dropped_tokens"] == layout.splits["train"].order.tokens % LENGTH
    assert set(receipt.inputs) <= set(own.manifest(declared).plan)
    json.dumps(dict(receipt.facts))
