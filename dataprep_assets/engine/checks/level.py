"""How much of an artifact its proofs make again from the source: a sample of its documents, or every one.

The level is declared (`prove: {level: …}`) and decides no byte: nothing is built again when it changes, but a verdict
that a sample gave does not count where every document is asked for.

Entry points: `draw_documents`, `samples_of`, `at_level`; `RebuildCount`, `counted_again` for what a person is told.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.checks.check import Check
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.receipt import Receipt

S = TypeVar("S")
Level = Literal["sample", "every_document"]
EVERY_DOCUMENT: Level = "every_document"
SAMPLE: Level = "sample"
SAMPLED = 460
"""Documents of a sample: of a shard of any size, one that has a fault in 1 % of its documents is named in 99 % of cases
(1 - 0.99^460)."""
BY_REFERENCE = 16
"""Documents of a shard that the reference engine encodes again; the others are encoded by the certified engine."""


@dataclass(frozen=True, kw_only=True)
class RebuildCount:
    """How many documents the proofs make again, and of how many."""

    level: Level
    documents: int
    of: int

    @property
    def share(self) -> float:
        """The share that is made again; 1 of nothing."""
        return self.documents / self.of if self.of else 1.0

    def __str__(self) -> str:
        """The level and the share in words."""
        said = "every document" if self.level == EVERY_DOCUMENT else "a sample"
        # rounded down: 99.99 % is not all
        return f"{said}: {int(self.share * 1000) / 10:g} % of the documents"


def draw_documents(key: str, total: int, samples: int | None) -> NDArray[np.int64]:
    """The numbers, below `total`, of the documents to make again: int64, ascending.

    One is drawn from each of `samples` stretches of equal length, so that a fault that runs over two stretches is
    always met; all without `samples`. The draw is seeded by the receipt's `key`, so that a failure repeats.
    """
    if samples is None or samples >= total:
        return np.arange(total)
    rng = np.random.default_rng(int(digest_value(key)[:16], 16))
    # stretch i is [bounds[i], bounds[i + 1]); none is empty, because there are more documents than samples
    bounds = np.arange(samples + 1) * total // samples
    return rng.integers(bounds[:-1], bounds[1:])


def samples_of(level: Level) -> int | None:
    """How many documents of a shard are made again at this level; None: every one."""
    return None if level == EVERY_DOCUMENT else SAMPLED


def at_level(checks: Iterable[Check[S]], level: Level) -> tuple[Check[S], ...]:
    """The checks as a dataset of this level asks for them."""
    every = level == EVERY_DOCUMENT
    return tuple(replace(check, every_document=every) if check.samples else check for check in checks)


def documents_in(receipt: Receipt) -> int:
    """The documents of a shard, of its ledger."""
    return 0 if receipt.ledger is None else receipt.ledger.documents


def counted_again(receipts: Iterable[Receipt], documents: Callable[[Receipt], int], level: Level) -> RebuildCount:
    """How many documents of these partitions the proofs make again, as `documents` counts those of each."""
    counts = [documents(receipt) for receipt in receipts]
    some = counts if level == EVERY_DOCUMENT else [min(count, SAMPLED) for count in counts]
    return RebuildCount(level=level, documents=sum(some), of=sum(counts))
