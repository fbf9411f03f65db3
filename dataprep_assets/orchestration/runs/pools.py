"""Dagster's pools: how many runs at a time may use the network, and how many the cores.

An instance's `concurrency.pools.default_limit` does not hold for its first runs: Dagster gives a pool this limit when
it first sees a run of the pool in the queue, but only after it has looked up which pools are limited, so every run that
is queued at that moment starts. `limit_pools` sets the limit before there is a run.
"""

import dagster as dg

POOLS = {"network": "dataprep_network", "cpu": "dataprep_cpu"}
"""The pool's name in an artifact's spec → its name in Dagster."""


def limit_pools(instance: dg.DagsterInstance) -> None:
    """Give each pool without a limit the instance's default, if it has one; existing limits stay."""
    if instance.global_op_concurrency_default_limit is None:
        return
    limited = {pool.name for pool in instance.event_log_storage.get_pool_limits()}
    for pool in POOLS.values():
        if pool not in limited:
            instance.event_log_storage.initialize_concurrency_limit_to_default(pool)
