"""Dynamic partitions are registered in the plan's order, so that a range of them is right, whatever existed before."""

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import dagster as dg
import pytest

from dataprep_assets.orchestration.partitions import register_in_order
from dataprep_assets_tests.session.storages import keep_what_storages_make


@pytest.mark.parametrize(
    ("there", "wanted"),
    [
        pytest.param([], ["train_0", "val_0"], id="the first"),
        pytest.param(["train_0", "val_0"], ["train_0", "val_0"], id="nothing new"),
        pytest.param(["train_0", "val_0"], ["train_0", "train_1", "val_0"], id="more in the middle"),
        pytest.param(["train_0", "train_1", "val_0"], ["train_0", "val_0"], id="fewer in the middle"),
        pytest.param(["train_0"], ["train_0", "train_1"], id="more at the end"),
        pytest.param(["train_0", "train_1"], ["train_0"], id="fewer at the end"),
        pytest.param(["b_0", "a_0"], ["a_0", "b_0"], id="another order"),
        pytest.param(["a_0"], ["b_0"], id="all others"),
    ],
)
def test_the_planned_partitions_are_registered_in_their_order(there: Sequence[str], wanted: Sequence[str]) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        register_in_order(instance, "shards", there)
        register_in_order(instance, "shards", wanted)
        assert list(instance.get_dynamic_partitions("shards")) == list(wanted)


def test_materializations_of_a_key_stay_known() -> None:
    key = dg.AssetKey("bins")
    with dg.DagsterInstance.ephemeral() as instance:
        register_in_order(instance, "shards", ["train_0", "val_0"])
        instance.report_runless_asset_event(dg.AssetMaterialization(key, partition="val_0"))
        register_in_order(instance, "shards", ["train_0", "train_1", "val_0"])
        assert instance.get_materialized_partitions(key) == {"val_0"}


KEYS = [f"train_{i}" for i in range(40)]


def register(folder: str) -> None:
    keep_what_storages_make()
    with dg.DagsterInstance.local_temp(folder) as instance:
        register_in_order(instance, "shards", KEYS)


def test_several_runs_that_register_the_same_partitions_at_once_all_succeed(tmp_path: Path) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        instance.add_dynamic_partitions("shards", ["val_0", *KEYS[:3]])
        processes = multiprocessing.get_context("forkserver")
        processes.set_forkserver_preload([__name__])
        with ProcessPoolExecutor(4, processes) as pool:
            list(pool.map(register, [str(tmp_path)] * 12))
        assert list(instance.get_dynamic_partitions("shards")) == KEYS
