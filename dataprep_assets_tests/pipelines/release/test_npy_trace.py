"""Traces of documents in npy shards, compared with the shards: reported positions, and contents of samples."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets.engine.trace.trace import Trace, trace_documents
from dataprep_assets.errors import NotFoundError
from dataprep_assets.formats.sample_ids import compute_sample_id
from dataprep_assets.pipelines.release.component import ShardRelease
from dataprep_assets.pipelines.release.declaration import ReleaseDeclaration
from dataprep_assets.pipelines.release.layout import ReleaseLayout
from dataprep_assets.pipelines.release.npy_shard import build_npy_shard
from dataprep_assets.pipelines.release.npy_trace import ReleaseTracer
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.release.conftest import LENGTH, Bins


def tracer_of(bins: Bins, declared: ReleaseDeclaration) -> ReleaseTracer:
    tracer = ShardRelease(declared).tracer(bins.store)
    assert isinstance(tracer, ReleaseTracer)
    return tracer


def build(bins: Bins, declared: ReleaseDeclaration) -> ReleaseLayout:
    """Build the shards of the two small splits."""
    layout = bins.layout(declared)
    for partition in layout.partitions:
        if not partition.startswith("train"):
            build_npy_shard(declared, bins.store, layout, partition)
    return layout


def npy(found: Trace) -> list[Any]:
    return [place for place in found.places if "/npy_shards/" in place.artifact]


@pytest.mark.parametrize(
    "options", [{}, {"shuffle_seed": None, "tail": "pad"}, {"tokens_per_shard": 3 * LENGTH, "mix": 1}]
)
def test_every_document_and_every_sample_is_traced(bins: Bins, tmp_path: Path, options: dict[str, Any]) -> None:
    mine = bins.copied(tmp_path)
    declared = mine.declare(**options)
    layout, tracer = build(mine, declared), tracer_of(mine, declared)
    separator = layout.separator_id
    for split in ("val", "test"):
        shards = {
            key: np.load(mine.root / declared.dataset / "npy_shards" / key / f"{key}.npy")
            for key in layout.partitions
            if key.startswith(f"{split}_")
        }
        dropped = layout.splits[split].cuts[-1].dropped
        held: dict[tuple[str, int], set[int]] = {}
        covered = left_out = 0
        for number, ids in enumerate(mine.documents(declared, split)):
            (found,) = trace_documents(tracer, decode=False, document=number, split=split)
            told = [shards[p.artifact.rpartition("/")[2]][p.start : p.stop] for p in npy(found)]
            joined = np.concatenate(told) if told else np.zeros(0, ids.dtype)
            assert joined.tolist() == ids[: len(joined)].tolist()
            covered, left_out = covered + len(joined), left_out + len(ids) - len(joined)
            for place in npy(found):
                key = place.artifact.rpartition("/")[2]
                samples = place.at["samples"]
                assert place.at["sample_ids"] == [
                    compute_sample_id(shards[key][at * LENGTH : (at + 1) * LENGTH]) for at in samples
                ]
                for sample in samples:
                    held.setdefault((key, sample), set()).add(number)
        assert left_out == dropped
        assert covered == sum(cut.stop - cut.start for cut in layout.splits[split].cuts)
        for (key, sample), documents in held.items():
            found_documents = trace_documents(tracer, decode=False, npy_shard=key, sample=sample)
            assert sorted(one.document for one in found_documents) == sorted(documents)
        assert all(ids[-1] == separator for ids in mine.documents(declared, split))


def test_a_document_in_several_samples_is_shown_in_lines(bins: Bins, tmp_path: Path) -> None:
    """Sample ids are arbitrary 64-bit numbers, so a range from first to last would exhaust the memory."""
    mine = bins.copied(tmp_path)
    declared = mine.declare()
    build(mine, declared)
    tracer, told = tracer_of(mine, declared), 0
    for number in range(len(mine.documents(declared, "val"))):
        (found,) = trace_documents(tracer, decode=False, document=number, split="val")
        for place, line in zip(npy(found), [one for one in found.lines() if "/npy_shards/" in one], strict=True):
            samples, ids = place.at["samples"], place.at["sample_ids"]
            if len(samples) > 1:
                assert_names(line, samples[0], samples[-1], ids[0], ids[1])
                told += 1
    assert told


def test_missing_shards_and_samples_are_reported(bins: Bins, tmp_path: Path) -> None:
    mine = bins.copied(tmp_path)
    declared = mine.declare()
    build(mine, declared)
    tracer = tracer_of(mine, declared)
    with raises(NotFoundError, "'val_000999'", "train_000000"):
        trace_documents(tracer, npy_shard="val_000999", sample=0)
    with raises(NotFoundError, 9999, "val_000000", 0):
        trace_documents(tracer, npy_shard="val_000000", sample=9999)


def test_shards_with_another_layout_are_reported_and_not_traced(bins: Bins, tmp_path: Path) -> None:
    mine = bins.copied(tmp_path)
    build(mine, mine.declare())
    tracer = tracer_of(mine, mine.declare(shuffle_seed=8))
    (found,) = trace_documents(tracer, document=0, split="val")
    assert npy(found) == []
    assert [note for note in tracer.notes if "outdated token bins" in note]


def test_shards_that_another_mixture_leaves_unchanged_are_traced(bins: Bins, tmp_path: Path) -> None:
    mine = bins.copied(tmp_path)
    build(mine, mine.declare(mix=8))
    declared = mine.declare(mix=16)
    assert build_npy_shard(declared, mine.store, mine.layout(declared), "val_000000")[1]
    assert trace_documents(tracer_of(mine, declared), npy_shard="val_000000", sample=0)
