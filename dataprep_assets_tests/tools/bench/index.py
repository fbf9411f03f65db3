"""What the index of documents costs: `python -m dataprep_assets_tests.tools.bench.index`.

Shards of the sample corpus (documents of about 500 tokens, ids of two bytes) are tokenized in this process. Compared
are the CPU seconds of the index with those of everything else, and the bytes of `document_ids.bin` and
`document_rows.bin` with those of `tokens.bin`. Which rows the documents were is known in any case; what the index adds
is the hash of each document, and one more file to write, join and digest. Both are clocked where they happen: on a
busy machine, two whole runs differ by more than the index takes.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.formats.document_index import IDS, ROWS, concatenate_ids, open_ids
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.stores.files import sha256_file
from dataprep_assets.stream.token_shard import TOKENS
from dataprep_assets.tokenization.document_ids import DocumentIds
from dataprep_assets_tests.pipelines.corpus.shards import Shard, build, shard_work, source, stream_plan
from dataprep_assets_tests.samples import SAMPLE

TARGET = 0.02
SAMPLE_RATE = float(CorpusDeclaration.model_fields["sample_rate"].default)
"""The share of documents that the reference encodes again, the default of a corpus."""


@dataclass(frozen=True, kw_only=True)
class ClockedIds(DocumentIds):
    """Document ids, with the CPU seconds that hashing took."""

    seconds: list[float] = field(default_factory=list, compare=False)

    def hash_texts(self, texts: Sequence[str], declared: Sequence[str] | None) -> NDArray[np.uint64]:
        """Return the ids of some documents."""
        started = time.process_time()
        ids = super().hash_texts(texts, declared)
        self.seconds.append(time.process_time() - started)
        return ids


def written(folder: Path, shard: Shard) -> float:
    """Return the CPU seconds of a shard's work on ids: writing by source file, joining, measuring and digesting."""
    ends = np.cumsum([0, *(line["documents"] for line in shard.receipt.sources)])
    ids = np.asarray(open_ids(shard.directory / IDS, int(ends[-1])))
    parts = [(folder / f"{at}.ids", ids[first:stop].tobytes()) for at, (first, stop) in enumerate(pairwise(ends))]
    files = [open(path, "wb") for path, _ in parts]  # noqa: SIM115 (closed below, after the measurement)
    started = time.process_time()
    for file, (_, data) in zip(files, parts, strict=True):
        file.write(data)
        file.flush()
    concatenate_ids([path for path, _ in parts], folder / IDS, int(ends[-1]))
    sha256_file(folder / IDS)
    seconds = time.process_time() - started
    for file in files:
        file.close()
    return seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if the index costs more than the target."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.bench.index", description=__doc__)
    parser.add_argument(
        "--data", type=Path, help="JSON lines of your own, *.jsonl.zst; default: the sample, four times"
    )
    parser.add_argument("--runs", type=int, default=25)
    arguments = parser.parse_args(argv)
    folder = arguments.data or SAMPLE / "data"
    files = sorted(folder.rglob("*.jsonl.zst")) * (1 if arguments.data else 4)
    rows: list[tuple[float, float, float]] = []
    with tempfile.TemporaryDirectory(prefix="dataprep-bench-") as name:
        root, beside = Path(name) / "shard", Path(name) / "written"
        for number in range(arguments.runs + 1):
            ids = ClockedIds()
            plan = stream_plan(ids=ids, sample_rate=SAMPLE_RATE)
            work = shard_work(root, plan, [source(path, at) for at, path in enumerate(files)])
            started = time.process_time()
            shard = build(work)
            total = time.process_time() - started
            beside.mkdir()
            if number:  # the first run fills caches
                rows.append((sum(ids.seconds), written(beside, shard), total))
            sizes = {record.path: record.bytes for record in shard.receipt.files}
            share = (sizes[IDS] + sizes.get(ROWS, 0)) / sizes[TOKENS]
            documents, tokens = shard.ledger.documents, shard.ledger.tokens
            shutil.rmtree(root)
            shutil.rmtree(beside)
    without = [total - hashing - writing for hashing, writing, total in rows]
    hashed = statistics.median(row[0] / rest for row, rest in zip(rows, without, strict=True))
    stored = statistics.median(row[1] / rest for row, rest in zip(rows, without, strict=True))
    print(f"{documents:,} documents, {tokens:,} tokens; medians of {arguments.runs} runs")
    print(f"CPU seconds without the index: {statistics.median(without):.3f}; with it {hashed + stored:.2%} more")
    print(f"  hashing {hashed:.2%}, writing {stored:.2%} (target: under {TARGET:.0%} together)")
    print(f"bytes: {share:.2%} of the token bins (target: under {TARGET:.0%})")
    return int(hashed + stored >= TARGET or share >= TARGET)


if __name__ == "__main__":
    sys.exit(main())
