"""Measure the time of a `dataprep trace` query: `python -m dataprep_assets_tests.tools.bench.trace [DOCUMENTS]`.

It uses a synthetic corpus of a million documents in 64 shards with all views except the copying ones, whose files are
written in their formats without tokenizing. For seeded queries of every kind it prints milliseconds: the median and the
99th of a hundred.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.engine.trace.trace import TraceQuery
from dataprep_assets.formats import document_ends
from dataprep_assets.formats.document_index import IDS, ROWS, RunWriter
from dataprep_assets.integrity.artifacts import Artifact, LocalArtifacts
from dataprep_assets.integrity.receipt import Ledger, Receipt, record_files
from dataprep_assets.stream.stream_index import IndexedShard
from dataprep_assets.stream.stream_tracer import StreamTracer
from dataprep_assets.stream.token_shard import ENDS, TOKENS
from dataprep_assets.tokenization.document_ids import DocumentIds, hash_texts
from dataprep_assets_tests.pipelines.corpus.pipeline import sample_declaration
from dataprep_assets_tests.pipelines.corpus.shards import bundle

SHARDS, FILES, ASKED = 64, 8, 300


def write_shard(root: Path, number: int, documents: int) -> None:
    """Write one shard of documents with 8 tokens on average, in which every hundredth row is left out."""
    artifact = Artifact(dataset="sample_corpus", name="token_bins", partition=f"train-{number:05d}")
    folder = artifact.directory(root)
    folder.mkdir(parents=True)
    rng = np.random.default_rng(number)
    ends = np.cumsum(rng.integers(1, 16, documents)).astype(np.uint64)
    document_ends.write(folder / ENDS, ends)
    rng.integers(0, 4000, int(ends[-1])).astype("<u2").tofile(folder / TOKENS)
    first = number * documents
    hash_texts([f"doc-{at}" for at in range(first, first + documents)]).astype("<u8").tofile(folder / IDS)
    a_file = documents // FILES
    rows = np.arange(1, documents + 1, dtype=np.uint64)
    with open(folder / ROWS, "wb") as file:
        for part in range(FILES):
            runs = RunWriter(file, 1)
            runs._documents = part * a_file
            runs.add(rows[:a_file] + rows[:a_file] // np.uint64(100))
    sources = [
        {"file": f"train/{number:05d}-{part}.jsonl", "documents": a_file, "rows_in": a_file} for part in range(FILES)
    ]
    Receipt(
        dataset=artifact.dataset,
        artifact=artifact.name,
        partition=artifact.partition,
        key="0" * 64,
        inputs={},
        files=record_files(folder),
        facts={
            "dtype": "uint16",
            "separator_id": 0,
            "bos_id": None,
            "special_tokens": "text",
            "certificate": {},
            "document_ids": "field",
            "id_field": "id",
        },
        ledger=Ledger(rows_in=documents, documents=documents, tokens=int(ends[-1])),
        sources=tuple(sources),
    ).write(folder)


def opened(root: Path) -> StreamTracer:
    """Return the tracer of the synthetic corpus."""
    corpus, store = sample_declaration(views=[]), LocalArtifacts(root)
    artifacts = [corpus.artifact("token_bins", f"train-{number:05d}") for number in range(SHARDS)]
    shards = [IndexedShard(store, artifact, store.require(artifact)) for artifact in artifacts]
    ids = DocumentIds(id_field="id")
    return StreamTracer(corpus, store, [], {"train": shards}, bundle=bundle, ids=lambda: ids)


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    documents = int(arguments[0]) if arguments else 1_000_000
    each = documents // SHARDS // FILES * FILES
    with tempfile.TemporaryDirectory() as folder:
        for number in range(SHARDS):
            write_shard(Path(folder), number, each)
        started = time.perf_counter()
        tracer = opened(Path(folder))
        print(json.dumps({"documents": each * SHARDS, "opened_ms": round((time.perf_counter() - started) * 1000, 1)}))
        rng = np.random.default_rng(0)
        chosen = [int(at) for at in rng.integers(0, each * SHARDS, ASKED)]
        ways: dict[str, list[dict[str, Any]]] = {
            "document": [{"document": at, "split": "train"} for at in chosen],
            "token": [{"token": at, "split": "train"} for at in chosen],
            "file and row": [
                {"file": f"train/{at // each:05d}-{at % FILES}.jsonl", "row": 1 + at % 99} for at in chosen
            ],
            "id": [{"id": f"doc-{at}"} for at in chosen],
        }
        for way, questions in ways.items():
            took = []
            for question in questions:
                began = time.perf_counter()
                found = tracer.find(TraceQuery(**question), decode=False)
                took.append((time.perf_counter() - began) * 1000)
                assert len(found) == 1
                if way == "id":
                    assert f"doc-{found[0].document}" == question["id"]
            median, slow = np.percentile(took, [50, 99])
            print(json.dumps({"way": way, "median_ms": round(median, 3), "p99_ms": round(slow, 3)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
