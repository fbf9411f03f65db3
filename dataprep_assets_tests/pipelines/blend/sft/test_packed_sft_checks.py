"""All checks pass on a valid shard, and those that read its files fail on a damaged one."""

import shutil
from pathlib import Path

from dataprep_assets.engine.checks.check import files_intact
from dataprep_assets.pipelines.blend.sft.shard import PACKED
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.blend.sft.conversations import Shard, build_rows
from dataprep_assets_tests.pipelines.blend.sft.proven_shards import ROWS, check_shard, edit_rows, find_failing


def test_a_valid_shard_passes_every_check(built: Shard) -> None:
    assert find_failing(built) == {}


def test_a_shard_with_every_kind_of_truncation_and_drop_passes(tmp_path: Path) -> None:
    for name, changes in (("cut", {"pack_size": 100}), ("dropped", {"pack_size": 200, "too_long": "drop"})):
        shard = build_rows(tmp_path / name, ROWS, **changes)
        assert find_failing(shard) == {}
    assert shard.receipt.facts["sequences_dropped"]["longer_than_pack_size"] > 0


def test_an_empty_shard_passes_and_a_file_in_it_does_not(tmp_path: Path, built: Shard) -> None:
    shard = build_rows(tmp_path, [])
    assert find_failing(shard) == {}
    shutil.copy(built.directory / PACKED, shard.directory / PACKED)
    assert "declared empty" in find_failing(shard)["counts_match"]


def test_a_changed_or_unknown_file_is_not_intact(shard: Shard) -> None:
    (shard.directory / "extra").touch()
    assert_names(files_intact(shard.directory, shard.receipt).summary, "extra")
    edit_rows(shard, lambda rows: None)
    assert find_failing(shard).keys() == {"files_intact"}


def test_a_truncated_file_is_found_by_every_check_that_reads_it(shard: Shard) -> None:
    packed = shard.directory / PACKED
    packed.write_bytes(packed.read_bytes()[:-9])
    found = find_failing(shard)
    assert found.keys() == set(check_shard(shard)) - {"ledger_balances", "losses_within_limit", "no_retracted_document"}
    assert all(PACKED in summary for summary in found.values())
