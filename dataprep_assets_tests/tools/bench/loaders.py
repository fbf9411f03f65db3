"""Compare the cost per sample of a schedule and of other loaders: `python -m dataprep_assets_tests.tools.bench.loaders
[--tokens N]`.

A corpus of invented text is built once, with the views of Megatron and MosaicML. Then each loader runs shuffled in its
own process: `TrainingData` by step (also with boundaries) and by sample, a plain loader of the same tokens from mapped
files, megatron-core's `BlendedDataset` over `GPTDataset`s with the index files of the schedule, and MosaicML's
`StreamingDataset`. Printed are CPU seconds of that process, the best of three rounds.
"""

import argparse
import json
import random
import resource
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.serving.sampler.loaders import SampleSource
from dataprep_assets.serving.sampler.training_data import TrainingData
from dataprep_assets_tests.cli.commands import dataprep
from dataprep_assets_tests.readers.families import MEGATRON, MOSAICML, PYTORCH
from dataprep_assets_tests.readers.megatron import opened_schedule
from dataprep_assets_tests.readers.mosaicml import opened_stream
from dataprep_assets_tests.readers.process import in_process_of
from dataprep_assets_tests.tools.bench.invented_text import sentence, vocabulary

LENGTH, BATCH, RUN, CORPUS = 2048, 32, "run", "words"
TOKENIZER = {"class": "bench"}
Cost = tuple[float, int]
"""The CPU seconds per sample, and the growth of the process's peak memory while reading, in bytes."""


def make(folder: Path, tokens: int) -> Path:
    """Build a project with the corpus, its views and a schedule; return the folder of its artifacts."""
    project, rng, words = folder / "bench", random.Random(0), vocabulary()
    dataprep(folder, "init", str(project)).check_returncode()
    defs = project / "bench" / "defs"
    texts = defs / CORPUS / "texts"
    texts.mkdir(parents=True)
    for split, share in (("train", 0.7), ("more", 0.3)):
        left = int(tokens * share)
        with (texts / f"{split}.jsonl").open("w") as file:
            while left > 0:
                length = rng.randint(50, 2000)
                file.write(json.dumps({"text": sentence(rng, words, length)}) + "\n")
                left -= length * 2  # an invented word is about two tokens of the sample's tokenizer
    corpus = {
        "dataset": CORPUS,
        "source": {"kind": "local", "path": "./texts"},
        "include": ["*.jsonl"],
        "splits": {"train": ["train*"], "more": ["more*"]},
        "tokenizer": {"path": "../sample_corpus/tokenizer"},
        "document": {"separator": "<|endoftext|>"},
        "shards": {"count": 4},
        "views": ["megatron", "mds"],
        "mds_sequence_length": LENGTH,
    }
    schedule = {
        "dataset": RUN,
        "sources": [
            {"dataset": CORPUS, "split": "train", "weight": 7},
            {"dataset": CORPUS, "split": "more", "name": "more", "weight": 3},
        ],
        "sequence_length": LENGTH,
        "batch": BATCH,
        "tokens": tokens,
        "megatron": {"tokenizer": TOKENIZER},
    }
    for name, component, attributes in (
        (CORPUS, "TokenizedCorpus", corpus),
        (RUN, "TrainingSchedule", schedule),
    ):
        (defs / name).mkdir(exist_ok=True)
        value = {"type": f"dataprep_assets.components.{component}", "attributes": attributes}
        (defs / name / "defs.yaml").write_text(json.dumps(value))
    done = dataprep(folder, "run", CORPUS, RUN, DATAPREP_PROJECT=str(project))
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "artifacts"


def _timed(read: Callable[[], int]) -> Cost:
    """Return the cost of a sample in the best of three rounds of reads."""
    read()
    before, best = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, float("inf")
    for _ in range(3):
        started = time.process_time()
        count = read()
        best = min(best, (time.process_time() - started) / count)
    return best, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


@in_process_of(PYTORCH)
def by_steps(root: Path, samples: int, boundaries: bool) -> Cost:
    """Read with `TrainingData`, a batch at a time."""
    data = TrainingData(root, RUN, boundaries=boundaries)

    def read() -> int:
        return sum(len(data.batch(step).tokens) for step in range(samples // BATCH))

    return _timed(read)


@in_process_of(PYTORCH)
def from_mapped_files(root: Path, samples: int) -> Cost:
    """Read the tokens and labels of the same batches from mapped files, and stack them."""
    data = TrainingData(root, RUN)
    sources = data.schedule.revisions[0].sources
    tokens = [[data.open_tokens(source, shard) for shard in source.shards] for source in sources]
    spans = [data.sampler.find_step_spans(step) for step in range(samples // BATCH)]
    batches = [
        list(zip(*(column.tolist() for column in (one.source, one.shard, one.start, one.stop)), strict=True))
        for one in spans
    ]

    def read() -> int:
        for batch in batches:
            rows = [tokens[source][shard][start : stop + 1].astype(np.int64) for source, shard, start, stop in batch]
            rows = [row for row in rows if len(row) == LENGTH + 1]  # leave out the last, short samples of shards
            np.stack([row[:-1] for row in rows]), np.stack([row[1:] for row in rows])
        return samples

    return _timed(read)


@in_process_of(PYTORCH)
def by_samples(root: Path, samples: int) -> Cost:
    """Read with `SampleSource`, a sample at a time, as tensors."""
    import torch

    source = SampleSource(TrainingData(root, RUN))

    def read() -> int:
        for number in range(samples):
            {name: torch.from_numpy(array) for name, array in source[number].items()}
        return samples

    return _timed(read)


@in_process_of(MEGATRON)
def megatron(weights: list[int], prefixes: list[str], run: int, cache: Path, samples: int) -> Cost:
    """Read with megatron-core, a sample at a time."""
    with opened_schedule(weights, prefixes, run, cache, length=LENGTH, tokenizer=TOKENIZER) as train:

        def read() -> int:
            for number in range(samples):
                train[number]
            return samples

        return _timed(read)


@in_process_of(MOSAICML)
def mosaicml(directory: Path, samples: int) -> Cost:
    """Read with MosaicML's `StreamingDataset`, shuffled, a sample at a time, as tensors, without labels."""
    import torch

    dataset: Any = opened_stream(directory, "train", batch_size=BATCH, shuffle=True)

    def read() -> int:
        count = 0
        for sample in islice(iter(dataset), samples):
            torch.from_numpy(np.asarray(sample["tokens"], np.int64))
            count += 1
        return count

    return _timed(read)


def main() -> None:
    """Build the data, and print a line per loader."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=20_000_000)
    tokens = parser.parse_args().tokens
    with tempfile.TemporaryDirectory(prefix="bench-loaders-") as folder:
        root = make(Path(folder), tokens)
        data = TrainingData(root, RUN)
        views = root / CORPUS
        shares = [source.share for source in data.schedule.revisions[0].sources]
        prefixes = [str(views / "megatron_bins" / split) for split in ("train", "more")]
        samples = min(data.sampler.samples, int(0.6 * tokens / LENGTH)) // BATCH * BATCH
        costs = {
            "TrainingData, by steps": by_steps(root, samples, False),
            "TrainingData, boundaries": by_steps(root, samples, True),
            "mapped files": from_mapped_files(root, samples),
            "TrainingData, by samples": by_samples(root, samples),
            "megatron-core": megatron(shares, prefixes, data.sampler.samples, root / RUN / "megatron_indices", samples),
            "MosaicML StreamingDataset": mosaicml(views / "mds_bins", samples),
        }
    ours = costs["TrainingData, by steps"][0]
    print(f"{samples:,} samples of {LENGTH} tokens")
    print(f"{'loader':<28}{'µs a sample':>12}{'Mtokens/CPU-s':>15}{'ours is':>10}{'memory grew':>14}")
    for name, (seconds, grown) in costs.items():
        print(
            f"{name:<28}{seconds * 1e6:>12.1f}{LENGTH / seconds / 1e6:>15.1f}{seconds / ours:>9.2f}x"
            f"{grown / 2**20:>10.1f} MiB"
        )


if __name__ == "__main__":
    main()
