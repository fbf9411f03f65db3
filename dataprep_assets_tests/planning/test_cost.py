"""The cost of a build is computed by simple arithmetic, and grows with the size of the data."""

import pytest

from dataprep_assets.errors import ConfigError
from dataprep_assets.planning.cost import (
    Cost,
    Machine,
    Products,
    Rates,
    compute_cost,
    format_cost,
    measure_density,
    measure_split_sizes,
)
from dataprep_assets.planning.manifest import ManifestEntry, ShardSizing, SourceFile, build_manifest, plan_shards
from dataprep_assets_tests.messages import assert_names, raises

MACHINE = Machine(cores=16, bandwidth=125e6)
IN_BUCKET = Products(copies=0, uploads=1)
SPLITS = {"train": ["train/**"], "val": ["validation/**"]}


def corpus(train: int, size: int, val: int = 1) -> list[ManifestEntry]:
    names = [f"train/chunk{n % 10 + 1}/example_train_{n}.jsonl.zst" for n in range(train)]
    names += [f"validation/chunk1/example_holdout_{n}.jsonl.zst" for n in range(val)]
    files = [SourceFile(relpath=name, size_bytes=size) for name in names]
    return build_manifest(files, include=["**/*.jsonl.zst"], splits=SPLITS)


def costed(
    entries: list[ManifestEntry],
    machine: Machine = MACHINE,
    shards: int | None = None,
    mirrored: bool = True,
    products: Products | None = None,
) -> Cost:
    works = measure_split_sizes(*plan_shards(entries, ShardSizing(count=shards)), mirrored=mirrored)
    return compute_cost(works, machine, products=products)


def test_slimpajama_has_a_thousand_shards_and_less_than_five_percent_orchestration() -> None:
    entries = corpus(59_166, 15_100_000, 31)
    found = costed(entries)
    assert 800 < found.shards < 1_000
    assert found.runs == sum(-(-s.shards // 50) for s in found.splits)
    assert found.orchestration_share < 0.05
    assert found.source_bytes == sum(e.size_bytes for e in entries)
    assert found.transfer == found.source_bytes / 125e6
    assert found.tokenizing == pytest.approx(found.source_bytes / 9e6 / 16)


def test_a_partition_per_file_would_cost_more_than_the_default_plan() -> None:
    entries = corpus(4_000, 1_000_000)
    planned, file_by_file = costed(entries), costed(entries, shards=4_000)
    assert (planned.shards, file_by_file.shards) == (5, 4_001)
    assert planned.tokenizing == file_by_file.tokenizing
    assert file_by_file.orchestration > 5 * planned.orchestration


def test_twice_the_cores_halve_only_the_tokenizing() -> None:
    entries = corpus(100, 50_000_000)
    one, two = costed(entries), costed(entries, Machine(cores=32, bandwidth=125e6))
    assert two.tokenizing * 2 == one.tokenizing
    assert (two.transfer, two.orchestration, two.disk_bytes) == (one.transfer, one.orchestration, one.disk_bytes)


def test_a_small_corpus_is_estimated_within_a_factor_of_two() -> None:
    # `dataprep run` of the sample corpus with six views and 92 checks took 5.7 s on two idle cores. `bench.whole_run`
    # compares estimates with measured times on larger corpora.
    entries = corpus(7, 70_000, 2)
    found = costed(entries, Machine(cores=2, bandwidth=125e6), mirrored=False)
    assert 5.7 / 2 < found.seconds < 5.7 * 2


def test_runs_launched_by_the_daemon_cost_their_start_and_its_ticks() -> None:
    entries = corpus(4_000, 1_000_000)
    alone, launched = (costed(entries, Machine(cores=2, bandwidth=1e8, runs_at_a_time=n)) for n in (1, 2))
    assert launched.orchestration > alone.orchestration + 60
    assert launched.tokenizing == alone.tokenizing


def test_disk_space_includes_mirror_shards_their_combination_and_headroom() -> None:
    found = costed(corpus(100, 50_000_000))
    stream = found.tokens * 4
    assert found.mirror_bytes == found.source_bytes
    assert found.artifact_bytes == 2 * stream
    assert found.disk_bytes == int((found.mirror_bytes + found.artifact_bytes + found.scratch_bytes) * 1.2)


def test_a_local_source_is_not_downloaded_and_a_bucket_stores_the_artifacts() -> None:
    entries = corpus(100, 50_000_000)
    in_place, bucket = costed(entries, mirrored=False), costed(entries, products=IN_BUCKET)
    assert (in_place.transfer, in_place.get_requests, in_place.mirror_bytes) == (0.0, 0, 0)
    assert in_place.put_requests == 0
    assert bucket.artifact_bytes == 0
    assert bucket.transfer == costed(entries).transfer + bucket.tokens * 4 / MACHINE.bandwidth
    assert bucket.put_requests > bucket.shards * 4


def test_a_release_writes_the_stream_again_as_its_own_shards() -> None:
    entries = corpus(100, 50_000_000)
    tokens = round(50_000_000 * 100 * 1.05), round(50_000_000 * 1.05)
    release = Products(copies=1, uploads=1, joined=False, tokens_per_shard=2_000_000)
    found, plain = costed(entries, products=release), costed(entries)
    assert [split.npy_shards for split in found.splits] == [-(-count // 2_000_000) for count in tokens]
    assert [split.runs for split in found.splits] == [1 + -(-s.npy_shards // 50) for s in found.splits]
    assert found.orchestration > plain.orchestration
    assert found.tokenizing == plain.tokenizing
    text = format_cost("release", found, MACHINE)
    assert "npy shards" in text
    assert "npy shards" not in format_cost("corpus", plain, MACHINE)


def test_requests_include_the_ranges_of_big_files() -> None:
    assert costed(corpus(10, 1)).get_requests == 11
    assert costed(corpus(10, (64 << 20) + 1)).get_requests == 33


def test_rates_come_from_finished_shards() -> None:
    rates = Rates.from_receipts(1_000, 2_000, 10.0, bytes_per_token=2.0)
    assert (rates.source_bytes_per_cpu_second, rates.tokens_per_source_byte, rates.bytes_per_token) == (100.0, 2.0, 2.0)
    assert Rates.from_receipts(0, 0, 0.0, bytes_per_token=2.0) == Rates(bytes_per_token=2.0)


def test_the_rates_of_the_benchmark_refer_to_stored_bytes() -> None:
    packed = corpus(3, 1_000)
    plain = [entry._replace(compression=None) for entry in packed]
    parquet = [entry._replace(compression=None, format="parquet") for entry in packed]
    assert [measure_density(files) for files in (packed, plain, parquet, packed + plain, [])] == [
        1.0,
        pytest.approx(0.3),
        pytest.approx(0.7),
        pytest.approx(0.65),
        1.0,
    ]
    rates = Rates.from_receipts(0, 0, 0.0, bytes_per_token=4.0, density=0.3)
    assert rates.tokens_per_source_byte == pytest.approx(Rates.tokens_per_source_byte * 0.3)
    assert rates.source_bytes_per_cpu_second == pytest.approx(Rates.source_bytes_per_cpu_second / 0.3)


def test_the_table_shows_every_cost() -> None:
    entries = corpus(59_166, 15_100_000, 31)
    text = format_cost("slimpajama", costed(entries), MACHINE)
    assert_names(text, "slimpajama", 16, "125.0", "MB/s", 1)
    assert "59,166" in text
    assert "59,197" in text  # the sum in the line for all splits
    for word in ("transfer", "tokenizing", "orchestration", "expected", "disk", "requests"):
        assert f"\n{word} " in text


@pytest.mark.parametrize(("name", "value"), [("cores", 0), ("bandwidth", 0.0), ("runs_at_a_time", 0)])
def test_a_machine_without_resources_is_refused_by_name(name: str, value: float) -> None:
    with raises(ConfigError, "plan", name, value, 0):
        Machine(**{"cores": 1, "bandwidth": 1.0, name: value})
