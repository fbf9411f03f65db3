"""Proofs on npy shards: all pass on the sample, and each fails on its own planted faults."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dataprep_assets.graph.finding import Finding, files_intact
from dataprep_assets.graph.verdicts import prove_all
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.release import npy_shards_proofs, order
from dataprep_assets.pipelines.release.layout import ReleaseLayout, ShardCut
from dataprep_assets.pipelines.release.npy_shard import shard_artifact
from dataprep_assets.pipelines.release.npy_shards import planned_shards
from dataprep_assets.pipelines.release.order import StreamOrder
from dataprep_assets_tests.pipelines.release.conftest import LENGTH, Bins
from dataprep_assets_tests.pipelines.release.planted_faults import poke


@pytest.fixture(scope="module")
def built(bins: Bins, tmp_path_factory: pytest.TempPathFactory) -> tuple[Bins, ReleaseLayout]:
    """The sample's npy shards."""
    own = bins.copied(tmp_path_factory.mktemp("proofs"))
    return own, own.build(own.declare(tail="pad"))


class Shard:
    """One shard of the sample, in a copy that may be damaged."""

    def __init__(self, built: tuple[Bins, ReleaseLayout], target: Path, partition: str = "val_000000") -> None:
        self.bins, self.layout = built
        artifact = shard_artifact(self.bins.declare(tail="pad"), partition)
        self.receipt = self.bins.store.require(artifact)
        self.directory = Path(shutil.copytree(self.bins.store.directory(artifact), target / "shard"))
        self.split, self.cut = self.layout.find(partition)
        self.tokens = self.directory / f"{partition}.npy"
        self.ids = self.directory / f"sample_ids_{partition[-6:]}.bin"

    def all(self) -> dict[str, Finding]:
        return {
            "files_intact": files_intact(self.directory, self.receipt),
            "format_valid": npy_shards_proofs.format_valid(self.directory, self.receipt),
            "sample_ids_recompute": npy_shards_proofs.sample_ids_recompute(self.directory, self.receipt),
            "ids_in_vocabulary": npy_shards_proofs.ids_in_vocabulary(self.directory, self.receipt),
            "equals_stream": npy_shards_proofs.equals_stream(
                self.directory, self.receipt, self.bins.store, self.split, self.cut
            ),
        }


def test_every_proof_passes_on_every_kind_of_shard(built: tuple[Bins, ReleaseLayout], tmp_path: Path) -> None:
    last = built[1].splits["train"].cuts[-1]
    for number, partition in enumerate(("train_000000", f"train_{last.index:06d}", "val_000000")):
        for name, finding in Shard(built, tmp_path / str(number), partition).all().items():
            assert finding.passed, f"{name}: {finding.summary}"


def test_shards_proven_on_workers_have_the_findings_of_each_alone(
    built: tuple[Bins, ReleaseLayout], tmp_path: Path
) -> None:
    own = built[0].copied(tmp_path)
    declared, layout = own.declare(tail="pad"), built[1]
    chosen = layout.partitions[:3] + layout.partitions[-1:]
    poke(own.store.directory(shard_artifact(declared, chosen[1])) / f"{chosen[1]}.npy", 200)
    shutil.rmtree(own.store.directory(shard_artifact(declared, chosen[2])))
    planned = planned_shards(declared, own.store, layout, chosen, workers=2)
    found = dict(prove_all(planned, npy_shards_proofs.prove_shard, 2))
    assert found == {shard.partition: npy_shards_proofs.prove_shard(shard) for shard in planned}
    failed = {p: {name for name, finding in of.items() if not finding.passed} for p, of in found.items()}
    assert failed == {
        chosen[0]: set(),
        chosen[1]: {"files_intact", "sample_ids_recompute", "equals_stream"},
        chosen[2]: {proof.name for proof in npy_shards_proofs.SHARD_PROOFS},
        chosen[3]: set(),
    }


def headerless(shard: Shard) -> None:
    shard.tokens.write_bytes(shard.tokens.read_bytes()[128:])


def ids_with_header(shard: Shard) -> None:
    ids = np.fromfile(shard.ids, "<u8")
    with open(shard.ids, "wb") as file:
        np.save(file, ids)


def shifted_ids(shard: Shard) -> None:
    np.roll(np.fromfile(shard.ids, "<u8"), 1).tofile(shard.ids)


def cut_tokens(shard: Shard) -> None:
    shard.tokens.write_bytes(shard.tokens.read_bytes()[:-2])


def other_dtype(shard: Shard) -> None:
    np.save(shard.tokens, np.load(shard.tokens).astype("<u4"))


def swapped_samples(shard: Shard) -> None:
    """Ids agree with their samples, but the order is not that of the stream."""
    tokens = np.load(shard.tokens).reshape(-1, LENGTH)
    np.save(shard.tokens, tokens[::-1].reshape(-1))
    np.fromfile(shard.ids, "<u8")[::-1].tofile(shard.ids)


def beyond_vocabulary(shard: Shard) -> None:
    tokens = np.load(shard.tokens)
    tokens[-1] = 60_000
    np.save(shard.tokens, tokens)


@pytest.mark.parametrize(
    ("damage", "failing"),
    [
        (lambda s: poke(s.tokens, 200), {"files_intact", "sample_ids_recompute", "equals_stream"}),
        (headerless, {"files_intact", "format_valid", "sample_ids_recompute", "ids_in_vocabulary", "equals_stream"}),
        (cut_tokens, {"files_intact", "format_valid", "sample_ids_recompute", "ids_in_vocabulary", "equals_stream"}),
        (ids_with_header, {"files_intact", "format_valid", "sample_ids_recompute"}),
        (shifted_ids, {"files_intact", "sample_ids_recompute"}),
        (other_dtype, {"files_intact", "format_valid"}),
        (swapped_samples, {"files_intact", "equals_stream"}),
        (beyond_vocabulary, {"files_intact", "sample_ids_recompute", "ids_in_vocabulary", "equals_stream"}),
    ],
)
def test_each_fault_fails_the_proofs_that_exist_to_find_it(
    built: tuple[Bins, ReleaseLayout], tmp_path: Path, damage: Callable[[Shard], None], failing: set[str]
) -> None:
    shard = Shard(built, tmp_path)
    damage(shard)
    found = {name for name, finding in shard.all().items() if not finding.passed}
    assert found >= failing


def test_a_vocabulary_that_the_dtype_cannot_hold_is_named(built: tuple[Bins, ReleaseLayout], tmp_path: Path) -> None:
    shard = Shard(built, tmp_path)
    receipt = replace(shard.receipt, facts={**shard.receipt.facts, "vocab_size": 70_000})
    assert "have wrapped" in npy_shards_proofs.ids_in_vocabulary(shard.directory, receipt).summary


def receipts_of(built: tuple[Bins, ReleaseLayout], split: str) -> list[Receipt]:
    own, layout = built
    declared = own.declare(tail="pad")
    return [
        own.store.require(shard_artifact(declared, f"{split}_{cut.index:06d}")) for cut in layout.splits[split].cuts
    ]


def test_tokens_are_accounted_for_and_a_lost_shard_is_noticed(built: tuple[Bins, ReleaseLayout]) -> None:
    receipts = receipts_of(built, "train")
    tokens = built[1].splits["train"].order.tokens
    found = npy_shards_proofs.tokens_accounted(receipts, source_tokens=tokens)
    assert found.passed
    assert found.facts["padding"] == -tokens % LENGTH
    assert not npy_shards_proofs.tokens_accounted(receipts, source_tokens=tokens + 1).passed
    assert not npy_shards_proofs.tokens_accounted(receipts[:-1], source_tokens=tokens).passed
    gap = npy_shards_proofs.tokens_accounted([receipts[0], *receipts[2:]], source_tokens=tokens)
    assert "shard 2 at token" in gap.summary


def test_repeated_samples_are_counted_and_shown(
    built: tuple[Bins, ReleaseLayout], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = [Shard(built, tmp_path / p, p) for p in ("train_000000", "train_000001")]
    pairs = [(s.directory, s.receipt) for s in shards]
    before = npy_shards_proofs.sample_ids_repeat(pairs)
    assert before.passed
    twice = npy_shards_proofs.sample_ids_repeat([*pairs, pairs[0]])
    assert not twice.passed
    assert twice.warning
    assert int(twice.facts["repeated"]) == int(before.facts["repeated"]) + 256
    assert len(twice.table) == 20
    monkeypatch.setattr(npy_shards_proofs, "IDS_AT_ONCE", 10)
    assert npy_shards_proofs.sample_ids_repeat([*pairs, pairs[0]]) == twice


def test_a_shuffled_order_is_told_from_one_that_is_not(
    built: tuple[Bins, ReleaseLayout], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, layout = built
    split = layout.splits["train"]
    found = npy_shards_proofs.order_shuffled(own.store, split)
    assert found.passed
    assert int(found.facts["documents"]) > 100
    flat = replace(split, order=StreamOrder(split.order.groups, None))
    assert "keeps the order of the source, as declared" in npy_shards_proofs.order_shuffled(own.store, flat).summary
    monkeypatch.setattr(order, "_splitmix", lambda base, count: np.arange(count, dtype=np.uint64))
    order.shuffled.cache_clear()
    sorted_by_mistake = npy_shards_proofs.order_shuffled(own.store, split)
    order.shuffled.cache_clear()
    assert not sorted_by_mistake.passed
    assert "still followed by their old neighbour" in sorted_by_mistake.summary


def test_a_wrong_cut_is_not_the_stream(built: tuple[Bins, ReleaseLayout], tmp_path: Path) -> None:
    shard = Shard(built, tmp_path, "train_000001")
    moved = ShardCut(index=1, start=shard.cut.start + 1, stop=shard.cut.stop + 1)
    found = npy_shards_proofs.equals_stream(shard.directory, shard.receipt, shard.bins.store, shard.split, moved)
    assert "is not that of the stream" in found.summary
