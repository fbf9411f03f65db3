"""The join of duplicates at sizes too large to sign: `python -m dataprep_assets_tests.tools.bench.duplicates_at_scale`.

Signatures are invented instead of computed: random bands and digests, 16 shingles a document, and for 22 of 100
documents those of another one with a shingle and a band changed, as in `bench.duplicates`. So the join has as many
tables, candidates and comparisons as with texts, and nobody has to hash them. Printed for each number of documents: CPU
seconds and peak memory of the join, and what that is for a trillion tokens, a billion documents of 750 words.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.duplicates.candidates import CandidateSet
from dataprep_assets.curation.duplicates.kept_set import Priority, ShardOrder, choose_kept_documents
from dataprep_assets.curation.duplicates.signatures import (
    DIGESTS,
    ENDS,
    KEY_HASHES,
    KEY_ROWS,
    SHINGLES,
    SignedShard,
)
from dataprep_assets_tests.tools.bench.duplicates import BANDING, THRESHOLD
from dataprep_assets_tests.tools.bench.runner import measure

SHINGLES_EACH, VERSIONS, A_SHARD = 16, 0.22, 250_000
TRILLION, WORDS = 1e9, 750
"""The number of documents in a trillion tokens, and of words in each."""


def invent(folder: Path, documents: int, seed: int) -> None:
    """Write the signatures of this many documents."""
    for number, start in enumerate(range(0, documents, A_SHARD)):
        rows = min(A_SHARD, documents - start)
        _write(folder / f"{number}", rows, np.random.default_rng([seed, number]))


def _write(folder: Path, rows: int, draw: np.random.Generator) -> None:
    folder.mkdir(parents=True)
    width = 1 + BANDING.bands
    keys = draw.integers(0, 1 << 64, (rows, width), np.uint64)
    shingles = draw.integers(0, 1 << 64, (rows, SHINGLES_EACH), np.uint64)
    versions = draw.permutation(rows)[: 2 * int(rows * VERSIONS)].reshape(2, -1)
    keys[versions[0], 2:] = keys[versions[1], 2:]
    shingles[versions[0], 1:] = shingles[versions[1], 1:]
    shingles.sort(axis=1)
    digests = draw.integers(1, 1 << 64, (rows, 3), np.uint64)
    digests[:, 0] = keys[:, 0]
    order = np.argsort(keys, axis=0, kind="stable")
    _store(folder / DIGESTS, digests)
    _store(folder / ENDS, np.arange(1, rows + 1, dtype=np.uint64) * np.uint64(SHINGLES_EACH))
    _store(folder / SHINGLES, shingles)
    _store(folder / KEY_HASHES, np.take_along_axis(keys, order, axis=0).T)
    (folder / KEY_ROWS).write_bytes(np.ascontiguousarray(order.T, "<u4").tobytes())


def _store(path: Path, values: NDArray[np.uint64]) -> None:
    path.write_bytes(np.ascontiguousarray(values, "<u8").tobytes())


def join(folder: Path) -> int:
    """Return the number of dropped documents."""
    shards = [
        SignedShard(one, rows, rows, BANDING.bands)
        for one in sorted(folder.iterdir(), key=lambda one: int(one.name))
        for rows in [(one / ENDS).stat().st_size // 8]
    ]
    documents = CandidateSet(shards, [np.ones(one.rows, np.bool_) for one in shards])
    zero = np.zeros(1, np.int64)
    orders = [ShardOrder(split=0, starts=zero, files=zero + at, ages=zero) for at in range(len(shards))]
    priority = Priority(documents=documents, shards=orders, by_split=False)
    return len(choose_kept_documents(documents, priority, threshold=THRESHOLD, across="ignore").removed)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--documents", type=int, nargs="+", default=[250_000, 1_000_000, 4_000_000])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--join", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.join is not None:
        print(join(asked.join))
        return 0
    stored = 8 * (3 + 1 + 1 + BANDING.bands) + 4 * (1 + BANDING.bands)
    print(f"{stored:,} bytes a document and 8 a word: {TRILLION * (stored + 8 * WORDS) / 1e12:,.1f} TB for a trillion")
    for documents in asked.documents:
        with tempfile.TemporaryDirectory(prefix="dataprep-bench-join-") as folder:
            invent(Path(folder), documents, asked.seed)
            took = measure(
                [sys.executable, "-m", "dataprep_assets_tests.tools.bench.duplicates_at_scale", "--join", folder]
            )
        hours = took.cpu / documents * TRILLION / 3600
        print(
            f"{documents:>12,} documents: {took.cpu:,.1f} s CPU, {took.peak_rss / 1e6:,.0f} MB, tables that are mapped "
            f"included; at that rate a trillion tokens take {hours:,.1f} hours of one core",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
