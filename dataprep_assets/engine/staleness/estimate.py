"""Estimates the cost of building a dataset, from the rates of finished shards or, without any, of the benchmark."""

from collections.abc import Sequence
from dataclasses import dataclass

from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.planning.cost import Cost, Machine, Products, Rates, SplitSizes, compute_cost


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The cost, and the number of finished shards whose rates it is based on; 0 for the benchmark's rates."""

    cost: Cost
    measured: int


def estimate_cost(
    sizes: Sequence[SplitSizes],
    machine: Machine,
    store: ArtifactStore,
    *,
    artifacts: Sequence[Artifact],
    bytes_per_token: int,
    products: Products,
    density: float,
) -> Estimate:
    """Estimate the cost of building these shards and the downstream artifacts.

    Args:
        sizes: Files and shards, by split.
        machine: The machine that builds.
        store: The store with the finished shards.
        artifacts: The artifacts whose receipts provide the rates.
        bytes_per_token: Item size of the token stream: 2 or 4.
        products: The copies and uploads of the stream.
        density: Result of `measure_density` for the source, for the rates of the benchmark.
    """
    receipts = [receipt for receipt in store.receipts(list(artifacts)) if receipt is not None]
    ledgers = [receipt.ledger for receipt in receipts if receipt.ledger is not None]
    rates = Rates.from_receipts(
        sum(ledger.source_bytes for ledger in ledgers),
        sum(ledger.tokens for ledger in ledgers),
        sum(receipt.measured.get("cpu_seconds", 0.0) for receipt in receipts),
        bytes_per_token=bytes_per_token,
        density=density,
    )
    return Estimate(cost=compute_cost(sizes, machine, rates, products), measured=len(ledgers))
