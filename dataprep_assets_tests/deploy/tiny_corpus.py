"""Generate a corpus of many tiny files in SlimPajama's layout."""

import json
import random
from pathlib import Path
from typing import Any

import zstandard

from dataprep_assets_tests.samples import SAMPLE

_TEXT = (
    "the river carries small stones down to the sea and every stone remembers a mountain; while über naïve façade "
    "def return import class lambda 12 345 6789 0.5 != == -> the quick brown fox jumps over lazy dogs again"
)
FILES_A_CHUNK = 1_000
LINES = 5_000
"""The number of different documents from which every file draws its own."""


def write_corpus(folder: Path, files: int, documents: int = 3, seed: int = 7) -> Path:
    """Write `files` different files of JSON lines below `folder/train`; equal arguments give equal files."""
    chance, words = random.Random(seed), _TEXT.split()
    compressor = zstandard.ZstdCompressor(level=1)
    texts = (" ".join(chance.choices(words, k=chance.randrange(5, 120))) for _ in range(LINES))
    lines = [json.dumps({"text": text}).encode() + b"\n" for text in texts]
    for number in range(files):
        path = folder / "train" / f"chunk{number // FILES_A_CHUNK + 1}" / f"example_train_{number}.jsonl.zst"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(compressor.compress(b"".join(chance.choices(lines, k=documents))))
    return folder


def make_attributes(folder: Path, shards: int, **changes: Any) -> dict[str, Any]:
    """Return the declaration of such a corpus, with the keys of a `defs.yaml`."""
    return {
        "dataset": "tiny",
        "source": {"kind": "local", "path": str(folder)},
        "splits": {"train": ["train/**"]},
        "tokenizer": {"path": str(SAMPLE / "tokenizer"), "name": "sample"},
        "document": {"separator": "<|endoftext|>"},
        "shards": {"count": shards},
        "views": ["nanogpt"],
        "sample_rate": 0.01,
        "workers": 2,
        **changes,
    }
