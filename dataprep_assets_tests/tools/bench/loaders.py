"""Compare the cost per sample of a schedule and of other loaders: `python -m dataprep_assets_tests.tools.bench.loaders
[--tokens N]`.

A corpus of invented text is built once, with the views of Megatron and MosaicML. Then the loaders run shuffled:
`TrainingData` by step (also with boundaries) and by sample, two plain loaders of memory-mapped files, megatron-core's
`BlendedDataset` over `GPTDataset`s with the index files of the schedule, and MosaicML's `StreamingDataset`. Printed are
CPU seconds, the best of seven rounds, and their ratio to the plain loader of random crops.
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

LENGTH, BATCH, RUN, CORPUS, ROUNDS = 2048, 32, "run", "words", 7
TOKENIZER = {"class": "bench"}
RANDOM_CROPS = "memmap, random crops"
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


def _measure_rounds(*reads: Callable[[], int]) -> list[Cost]:
    """Return the cost of a sample of each loader, in its best of `ROUNDS` rounds.

    The loaders take turns, because the load of the machine changes.
    """
    for read in reads:
        read()
    before, best = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, [float("inf")] * len(reads)
    for _ in range(ROUNDS):
        for number, read in enumerate(reads):
            started = time.process_time()
            count = read()
            best[number] = min(best[number], (time.process_time() - started) / count)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return [(cost, grown * 1024) for cost in best]


@in_process_of(PYTORCH)
def by_steps(root: Path, samples: int) -> list[Cost]:
    """Read batches with `TrainingData`, without and with boundaries, and with both plain loaders.

    The plain loaders read memory-mapped files (`np.memmap`) and return tokens and labels, int64. The first reads random
    crops, two per sample, like nanoGPT's `get_batch`. The second reads the samples of the schedule once each, from
    spans that it found before.
    """
    plain, marked = TrainingData(root, RUN), TrainingData(root, RUN, boundaries=True)
    sources, steps = plain.schedule.revisions[0].sources, range(samples // BATCH)
    paths = [[root / s.dataset / s.artifact / shard.name / "tokens.bin" for shard in s.shards] for s in sources]
    dtype = plain.open_tokens(sources[0], sources[0].shards[0]).dtype
    tokens = [[np.memmap(path, dtype, "r") for path in shards] for shards in paths]
    spans = [plain.sampler.find_step_spans(step) for step in steps]
    batches = [
        list(zip(*(column.tolist() for column in (one.source, one.shard, one.start, one.stop)), strict=True))
        for one in spans
    ]
    draw = np.random.default_rng(0)

    def read_steps(data: TrainingData) -> int:
        return sum(len(data.batch(step).tokens) for step in steps)

    def read_crops() -> int:
        corpus = tokens[0][0]
        for _ in steps:
            starts = draw.integers(0, len(corpus) - LENGTH, BATCH).tolist()
            np.stack([corpus[start : start + LENGTH].astype(np.int64) for start in starts])
            np.stack([corpus[start + 1 : start + 1 + LENGTH].astype(np.int64) for start in starts])
        return samples

    def read_spans() -> int:
        for batch in batches:
            rows = [tokens[source][shard][start : stop + 1].astype(np.int64) for source, shard, start, stop in batch]
            rows = [row for row in rows if len(row) == LENGTH + 1]  # leave out the last, short samples of shards
            np.stack([row[:-1] for row in rows]), np.stack([row[1:] for row in rows])
        return samples

    return _measure_rounds(lambda: read_steps(plain), lambda: read_steps(marked), read_crops, read_spans)


@in_process_of(PYTORCH)
def by_samples(root: Path, samples: int) -> list[Cost]:
    """Read with `SampleSource`, a sample at a time, as tensors."""
    import torch

    source = SampleSource(TrainingData(root, RUN))

    def read() -> int:
        for number in range(samples):
            {name: torch.from_numpy(array) for name, array in source[number].items()}
        return samples

    return _measure_rounds(read)


@in_process_of(MEGATRON)
def megatron(weights: list[int], prefixes: list[str], run: int, cache: Path, samples: int) -> list[Cost]:
    """Read with megatron-core, a sample at a time."""
    with opened_schedule(weights, prefixes, run, cache, length=LENGTH, tokenizer=TOKENIZER) as train:

        def read() -> int:
            for number in range(samples):
                train[number]
            return samples

        return _measure_rounds(read)


@in_process_of(MOSAICML)
def mosaicml(directory: Path, samples: int) -> list[Cost]:
    """Read with MosaicML's `StreamingDataset`, shuffled, a sample at a time, as tensors, without labels."""
    import torch

    dataset: Any = opened_stream(directory, "train", batch_size=BATCH, shuffle=True)

    def read() -> int:
        count = 0
        for sample in islice(iter(dataset), samples):
            torch.from_numpy(np.asarray(sample["tokens"], np.int64))
            count += 1
        return count

    return _measure_rounds(read)


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
        names = ("TrainingData, by steps", "TrainingData, boundaries", RANDOM_CROPS, "memmap, the same samples")
        costs = dict(zip(names, by_steps(root, samples), strict=True))
        [costs["TrainingData, by samples"]] = by_samples(root, samples)
        [costs["megatron-core"]] = megatron(
            shares, prefixes, data.sampler.samples, root / RUN / "megatron_indices", samples
        )
        [costs["MosaicML StreamingDataset"]] = mosaicml(views / "mds_bins", samples)
    baseline = costs[RANDOM_CROPS][0]
    print(f"{samples:,} samples of {LENGTH} tokens")
    print(f"{'loader':<28}{'µs a sample':>12}{'Mtokens/CPU-s':>15}{'/ crops':>10}{'memory grew':>14}")
    for name, (seconds, grown) in costs.items():
        print(
            f"{name:<28}{seconds * 1e6:>12.1f}{LENGTH / seconds / 1e6:>15.1f}{seconds / baseline:>10.2f}"
            f"{grown / 2**20:>10.1f} MiB"
        )


if __name__ == "__main__":
    main()
