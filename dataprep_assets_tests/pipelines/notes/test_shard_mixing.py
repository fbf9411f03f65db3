"""Shards of several datasets are mixed by their rows."""

from dataprep_assets.pipelines.notes.replay.replay import interleave_shards, repeat_to_weights
from dataprep_assets.pipelines.notes.tfds.provenance import ShardOrigin


def shard(source: int, number: int, rows: int) -> ShardOrigin:
    name = f"{source}.{number}"
    return ShardOrigin(dataset=str(source), partition="p", source_shard=name, rows=rows, payload_bytes=1, sha256=name)


def test_short_shards_count_by_their_rows() -> None:
    sources = [[shard(0, n, 256) for n in range(4)], [shard(1, n, 64) for n in range(16)]]
    found = interleave_shards(sources)
    half = found[: len(found) // 2]
    assert abs(sum(o.rows for o in half if o.dataset == "0") - 512) <= 256
    taken = repeat_to_weights(sources, [0.75, 0.25])
    assert [sum(o.rows for o in s) for s in taken] == [1536, 512]
