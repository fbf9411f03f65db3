"""Estimates what building a dataset will cost, with rates measured on finished shards, else on the benchmark."""

from collections.abc import Sequence
from dataclasses import dataclass

from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.planning.cost import Cost, Machine, Products, Rates, SplitSizes, cost


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The cost, and the number of finished shards that its rates were measured on: 0 if they are the benchmark's."""

    cost: Cost
    measured: int


def estimated(
    sizes: Sequence[SplitSizes],
    machine: Machine,
    store: ArtifactStore,
    *,
    artifacts: Sequence[Artifact],
    bytes_per_token: int,
    products: Products,
    density: float,
) -> Estimate:
    """Estimate the cost of making these shards and the artifacts downstream.

    Args:
        sizes: Files and shards, by split.
        machine: The machine that builds.
        store: Where to look for finished shards.
        artifacts: The artifacts whose receipts say how fast they were made.
        bytes_per_token: Item size of the token stream: 2 or 4.
        products: How many times the stream is written, uploaded and joined.
        density: `density_of` the source, for the rates of the bench.
    """
    receipts = [receipt for receipt in store.receipts(list(artifacts)) if receipt is not None]
    ledgers = [receipt.ledger for receipt in receipts if receipt.ledger is not None]
    rates = Rates.of_receipts(
        sum(ledger.source_bytes for ledger in ledgers),
        sum(ledger.tokens for ledger in ledgers),
        sum(receipt.measured.get("cpu_seconds", 0.0) for receipt in receipts),
        bytes_per_token=bytes_per_token,
        density=density,
    )
    return Estimate(cost=cost(sizes, machine, rates, products), measured=len(ledgers))
