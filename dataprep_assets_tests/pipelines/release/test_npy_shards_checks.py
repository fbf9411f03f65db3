"""Checks of npy shards: all pass on the sample, and each fails on its own planted faults."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.engine.checks.verdicts import PartitionChecks
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.release import npy_shards, order
from dataprep_assets.pipelines.release.layout import ReleaseLayout
from dataprep_assets.pipelines.release.npy_shard import get_shard_artifact
from dataprep_assets.pipelines.release.npy_shards import OpenedNpyShard, OpenedSplit, prepare_npy_shards
from dataprep_assets.stream.token_shard import ENDS
from dataprep_assets_tests.pipelines.release.conftest import LENGTH, Bins
from dataprep_assets_tests.pipelines.release.planted_faults import poke


@pytest.fixture(scope="module")
def built(bins: Bins, tmp_path_factory: pytest.TempPathFactory) -> tuple[Bins, ReleaseLayout]:
    """Return the sample's npy shards."""
    own = bins.copied(tmp_path_factory.mktemp("proofs"))
    return own, own.build(own.declare(tail="pad"))


class Shard:
    """One shard of the sample, in a copy that may be damaged."""

    def __init__(self, built: tuple[Bins, ReleaseLayout], target: Path, partition: str = "val_000000") -> None:
        self.bins, layout = built
        declared = self.bins.declare(tail="pad")
        (self.planned,) = prepare_npy_shards(declared, self.bins.store, layout, [partition], workers=1)
        copies = LocalArtifacts(target)
        self.directory = copies.directory(self.planned.artifact)
        shutil.copytree(self.bins.store.directory(self.planned.artifact), self.directory)
        self.opened = OpenedNpyShard(self.planned.artifact, copies, self.planned)
        self.tokens = self.directory / f"{partition}.npy"
        self.ids = self.directory / f"sample_ids_{partition[-6:]}.bin"

    def all(self) -> dict[str, Finding]:
        return {check.name: check.run(self.opened) for check in npy_shards.SHARD_CHECKS}


def test_every_check_passes_on_every_kind_of_shard(built: tuple[Bins, ReleaseLayout], tmp_path: Path) -> None:
    last = built[1].splits["train"].cuts[-1]
    for number, partition in enumerate(("train_000000", f"train_{last.index:06d}", "val_000000")):
        for name, finding in Shard(built, tmp_path / str(number), partition).all().items():
            assert finding.passed, f"{name}: {finding.summary}"


def test_shards_checked_by_workers_have_the_findings_of_each_shard_by_itself(
    built: tuple[Bins, ReleaseLayout], tmp_path: Path
) -> None:
    own = built[0].copied(tmp_path)
    declared, layout = own.declare(tail="pad"), built[1]
    chosen = layout.partitions[:3] + layout.partitions[-1:]
    poke(own.store.directory(get_shard_artifact(declared, chosen[1])) / f"{chosen[1]}.npy", 200)
    shutil.rmtree(own.store.directory(get_shard_artifact(declared, chosen[2])))
    group = npy_shards.build_check_groups(declared)[0]
    assert isinstance(group, PartitionChecks)
    found = dict(group.find_verdicts(own.store, chosen))
    assert found == dict(replace(group, workers=lambda *_: None).find_verdicts(own.store, chosen))
    failed = {p: {name for name, finding in of.items() if not finding.passed} for p, of in found.items()}
    assert failed == {
        chosen[0]: set(),
        chosen[1]: {"files_intact", "matches_stream"},
        chosen[2]: {check.name for check in npy_shards.SHARD_CHECKS},
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
    """Swap samples with their ids, so that only the order differs from the stream."""
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
        (lambda s: poke(s.tokens, 200), {"files_intact", "matches_stream"}),
        (headerless, {"files_intact", "format_valid", "matches_stream"}),
        (cut_tokens, {"files_intact", "format_valid", "matches_stream"}),
        (ids_with_header, {"files_intact", "format_valid", "matches_stream"}),
        (shifted_ids, {"files_intact", "matches_stream"}),
        (other_dtype, {"files_intact", "format_valid"}),
        (swapped_samples, {"files_intact", "matches_stream"}),
        (beyond_vocabulary, {"files_intact", "matches_stream"}),
    ],
)
def test_each_fault_fails_the_checks_for_it(
    built: tuple[Bins, ReleaseLayout], tmp_path: Path, damage: Callable[[Shard], None], failing: set[str]
) -> None:
    shard = Shard(built, tmp_path)
    damage(shard)
    found = {name for name, finding in shard.all().items() if not finding.passed}
    assert found >= failing


def with_ledger(shard: Shard, **counts: int) -> OpenedNpyShard:
    """Return the shard with a receipt that has a different ledger."""
    receipt = shard.opened.receipt
    assert receipt.ledger is not None
    shard.opened.__dict__["receipt"] = replace(receipt, ledger=replace(receipt.ledger, **counts))
    return shard.opened


def test_a_ledger_with_a_wrong_number_of_tokens_is_named(built: tuple[Bins, ReleaseLayout], tmp_path: Path) -> None:
    for number, counts in enumerate(({"max_id": 1}, {"documents": 3}, {"separators": 0})):
        assert not npy_shards.matches_stream(with_ledger(Shard(built, tmp_path / str(number)), **counts)).passed


def opened(built: tuple[Bins, ReleaseLayout], split: str) -> OpenedSplit:
    own, layout = built
    declared = own.declare(tail="pad")
    artifacts = [get_shard_artifact(declared, f"{split}_{cut.index:06d}") for cut in layout.splits[split].cuts]
    receipts = [own.store.require(artifact) for artifact in artifacts]
    return OpenedSplit(declared, own.store, layout.splits[split], artifacts, receipts)


def test_all_tokens_are_accounted_for_and_a_lost_shard_is_found(built: tuple[Bins, ReleaseLayout]) -> None:
    split = opened(built, "train")
    tokens = built[1].splits["train"].order.tokens
    found = npy_shards.tokens_accounted(split)
    assert found.passed
    assert found.facts["padding"] == -tokens % LENGTH
    assert not npy_shards.tokens_accounted(replace(split, receipts=split.receipts[:-1])).passed
    gap = npy_shards.tokens_accounted(replace(split, receipts=[split.receipts[0], *split.receipts[2:]]))
    assert "found shard 2," in gap.summary
    more = replace(split)
    more.__dict__["bins"] = [*split.bins, split.bins[0]]
    assert not npy_shards.tokens_accounted(more).passed


def test_repeated_samples_are_counted_and_shown(
    built: tuple[Bins, ReleaseLayout], monkeypatch: pytest.MonkeyPatch
) -> None:
    split = opened(built, "train")
    two = replace(
        split,
        layout=replace(split.layout, cuts=split.layout.cuts[:2]),
        artifacts=split.artifacts[:2],
        receipts=split.receipts[:2],
    )
    before = npy_shards.samples_unique(two)
    assert before.passed
    first = replace(
        two,
        layout=replace(split.layout, cuts=[*two.layout.cuts, two.layout.cuts[0]]),
        artifacts=[*two.artifacts, two.artifacts[0]],
        receipts=[*two.receipts, two.receipts[0]],
    )
    twice = npy_shards.samples_unique(first)
    assert not twice.passed
    assert twice.warning
    assert int(twice.facts["repeated"]) == int(before.facts["repeated"]) + 256
    assert len(twice.table) == 20
    monkeypatch.setattr(npy_shards, "IDS_AT_ONCE", 10)
    assert npy_shards.samples_unique(first) == twice


def test_a_shuffled_order_separates_nearly_all_neighboring_documents(built: tuple[Bins, ReleaseLayout]) -> None:
    own, layout = built
    split = layout.splits["train"].order
    assert split.seed is not None
    kept = documents = 0
    for group in split.groups:
        found = order.shuffle_documents(
            split.seed, group, tuple(own.store.local(shard.artifact, [ENDS]) for shard in group)
        )
        same = found.source[1:] == found.source[:-1]
        lengths = np.diff(found.ends, prepend=0)
        kept += int(np.count_nonzero(same & (found.first[1:] == found.first[:-1] + lengths[:-1])))
        documents += len(found.source)
    assert documents > 100
    # By chance, about one pair of neighbors stays together in each group, so allow ten.
    assert kept <= 10 * len(split.groups)


def test_a_wrongly_cut_shard_differs_from_the_stream(built: tuple[Bins, ReleaseLayout], tmp_path: Path) -> None:
    shard = Shard(built, tmp_path, "train_000001")
    split, cut = shard.planned.layout.find_shard("train_000001")
    moved = replace(cut, start=cut.start + 1, stop=cut.stop + 1)
    layout = replace(shard.planned.layout, splits={"train": replace(split, cuts=[split.cuts[0], moved])})
    found = npy_shards.matches_stream(replace(shard.opened, planned=replace(shard.planned, layout=layout)))
    assert "differs from the stream" in found.summary
