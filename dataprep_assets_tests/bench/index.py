"""What the index of documents costs: `python -m dataprep_assets_tests.bench.index`.

Shards of the sample corpus (documents of about 500 tokens, ids of two bytes) are tokenized with the index and without
it, in turn, in this process. Compared are the CPU seconds, and the bytes of `document_ids.bin` and `document_rows.bin`
with those of `tokens.bin`. Without the index a shard has no hashes; which rows its documents were it has in any case.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from dataprep_assets.formats.document_index import IDS, ROWS
from dataprep_assets.pipelines.corpus.token_shard import TOKENS
from dataprep_assets.tokenization.document_ids import DocumentIds
from dataprep_assets_tests.pipelines.corpus.shards import Shard, build, shard_work, source, stream_plan
from dataprep_assets_tests.samples import SAMPLE

TARGET = 0.02


def timed(folder: Path, files: Sequence[Path], ids: DocumentIds | None) -> tuple[float, Shard]:
    """CPU seconds of a shard of these files, and the shard."""
    work = shard_work(folder, stream_plan(ids=ids), [source(path, at) for at, path in enumerate(files)])
    started = time.process_time()
    shard = build(work)
    return time.process_time() - started, shard


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 1 when the index costs more than the target."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.bench.index", description=__doc__)
    parser.add_argument(
        "--data", type=Path, help="JSON lines of your own, *.jsonl.zst; default: the sample, four times"
    )
    parser.add_argument("--runs", type=int, default=9, help="of each")
    arguments = parser.parse_args(argv)
    folder = arguments.data or SAMPLE / "data"
    files = sorted(folder.rglob("*.jsonl.zst")) * (1 if arguments.data else 4)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    share = 0.0
    with tempfile.TemporaryDirectory(prefix="dataprep-bench-") as name:
        for number in range(arguments.runs + 1):
            for indexed in (True, False) if number % 2 else (False, True):
                root = Path(name) / "shard"
                cpu, shard = timed(root, files, DocumentIds() if indexed else None)
                if number:  # the first pair fills caches
                    seconds[indexed].append(cpu)
                if indexed:
                    sizes = {record.path: record.bytes for record in shard.receipt.files}
                    share = (sizes[IDS] + sizes.get(ROWS, 0)) / sizes[TOKENS]
                    documents, tokens = shard.ledger.documents, shard.ledger.tokens
                shutil.rmtree(root)
    # what else the machine does adds to both, and never takes away
    with_it, without = (min(seconds[indexed]) for indexed in (True, False))
    ratio = with_it / without - 1
    print(f"{documents:,} documents, {tokens:,} tokens; the least of {arguments.runs} runs")
    print(f"CPU seconds: {with_it:.3f} with the index, {without:.3f} without: {ratio:.2%} more (target: under 2 %)")
    print(f"bytes: {share:.2%} of the token bins (target: under {TARGET:.0%})")
    return int(ratio >= TARGET or share >= TARGET)


if __name__ == "__main__":
    sys.exit(main())
