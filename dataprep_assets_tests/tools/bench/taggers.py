"""Measure curation of text: `python -m dataprep_assets_tests.tools.bench.taggers` or `make bench-curation`.

The table shows MB of text per CPU-second in one process: for each built-in tagger, for several together, which share
the normalized and split texts, for the signatures of near-duplicates, and for the search for benchmark items. Each row
has a baseline, which reads the first documents:

- for a tagger, datatrove's filter of the same name, if datatrove and spaCy are installed
- for signatures, a loop that joins shingles and calls `rensa` per document
- for benchmark items, a loop that looks up each joined n-gram of a document in a set
- for a fastText model, which is trained on the first documents, a loop that calls `predict` per document

Items have a question and four choices, which are words drawn from the documents. Ten questions are copies of a
document's words. Targets are for an idle machine.
"""

import argparse
import itertools
import json
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from dataprep_assets.curation.benchmarks.benchmarks import Benchmarks
from dataprep_assets.curation.benchmarks.items import BenchmarkSet
from dataprep_assets.curation.classifiers.fasttext_tagger import FastTextTagger
from dataprep_assets.curation.classifiers.model_files import ModelFiles
from dataprep_assets.curation.duplicates.banding import choose_banding
from dataprep_assets.curation.duplicates.signatures import SignatureSettings, Signer
from dataprep_assets.curation.table import DocumentBatch
from dataprep_assets.curation.tagging import compute_tags, load_tagger
from dataprep_assets_tests.samples import SAMPLE
from dataprep_assets_tests.tools.parity.datatrove import texts_of

_NAMES = ("repetition", "gopher", "c4", "fineweb", "personal", "language")
SUBJECTS = {
    **{name: (name,) for name in _NAMES},
    "gopher, c4 and fineweb": ("gopher", "c4", "fineweb"),
    "all": _NAMES,
}
"""Row of the table → its taggers."""
TARGETS = {
    **{"repetition": 25, "personal": 40, "language": 40, "gopher, c4 and fineweb": 60, "all": 13},
    **{"signatures": 20, "1,000 items": 50, "100,000 items": 40},
}
"""Row of the table → the MB of text per CPU-second that it must reach on an idle machine, on 69 MB of mixed text."""
_BATCH_BYTES = 4 << 20
"""Bytes of a batch, as when a corpus is built."""
_SHINGLE, _PERMUTATIONS, _NGRAM, _MIN_WORDS = 5, 128, 8, 13
"""The default settings of near-duplicates and of decontamination."""
_COPIES, _COPIED_WORDS = 10, 40
_TRAINED = 500
"""Documents that train the fastText model."""

Batch = list[str]
Measure = Callable[[Batch], object]


def _count_bytes(texts: Sequence[str]) -> int:
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


def _yield_batches(texts: Sequence[str]) -> Iterator[Batch]:
    batch: Batch = []
    batch_bytes = 0
    for text in texts:
        batch.append(text)
        batch_bytes += _count_bytes([text])
        if batch_bytes >= _BATCH_BYTES:
            yield batch
            batch, batch_bytes = [], 0
    if batch:
        yield batch


def _measure_seconds(measures: Sequence[Measure], batches: Sequence[Batch]) -> float:
    """Return the CPU seconds of functions that are called one after another with each batch."""
    # Begin with a different batch, so that no function finds the split texts of an earlier measurement.
    for measure in measures:
        measure(["A different text."])
    started = time.process_time()
    for batch in batches:
        for measure in measures:
            measure(batch)
    return time.process_time() - started


def _sign(batch: Batch) -> None:
    """Compute the signatures of near-duplicates with the default settings."""
    banding = choose_banding(0.8, _PERMUTATIONS)
    signer = Signer(SignatureSettings(kind="near", normalization="words", shingle=_SHINGLE, banding=banding, key=None))
    hashes, ends = signer.compute_shingles(batch)
    signer.compute_digests(batch, batch, hashes, ends)
    signer.compute_bands(hashes, ends)


def _sign_plainly(batch: Batch) -> None:
    """Compute MinHash signatures of joined shingles, one document after the other."""
    from rensa import RMinHash

    for text in batch:
        minhash = RMinHash(num_perm=_PERMUTATIONS, seed=42)
        minhash.update(_join_runs(text, _SHINGLE))
        minhash.digest()


def _join_runs(text: str, size: int) -> list[str]:
    """Return the runs of this many words of a text."""
    words = re.findall(r"\w+", text.lower())
    return [" ".join(words[start : start + size]) for start in range(len(words) - size + 1)]


def invent_items(texts: Sequence[str], count: int, seed: int = 1) -> Iterator[dict[str, object]]:
    """Yield items of a benchmark (see the module's docstring)."""
    draw = random.Random(seed)
    words = [word for text in texts for word in text.split()]
    for number in range(count):
        size = draw.randint(8, 12) if number % 2 else draw.randint(13, 60)
        question = draw.choices(words, k=size)
        if number < _COPIES:
            start = draw.randrange(len(words) - _COPIED_WORDS)
            question = words[start : start + _COPIED_WORDS]
        choices = [" ".join(draw.choices(words, k=draw.randint(2, 6))) for _ in range(4)]
        yield {"question": " ".join(question), "choices": choices, "answer": draw.choice("ABCD")}


def _load_searches(texts: Sequence[str], count: int) -> tuple[Measure, Measure]:
    """Return the search for some items, and a plain loop that searches for their n-grams."""
    items = list(invent_items(texts, count))
    with tempfile.TemporaryDirectory(prefix="dataprep-bench-taggers-") as folder:
        path = Path(folder) / "items.jsonl"
        path.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
        benchmarks = Benchmarks([BenchmarkSet(name="items", path=path)], _NGRAM, _MIN_WORDS)
    known = {run for item in items for run in _join_runs(str(item["question"]), _NGRAM)}
    return (
        benchmarks.find_best_matches,
        lambda batch: [any(run in known for run in _join_runs(text, _NGRAM)) for text in batch],
    )


def _train_fasttext(texts: Sequence[str], folder: Path) -> tuple[Measure, Measure]:
    """Return the tagger with a model of 2 labels and 2 million n-grams, and a plain loop over the same model.

    Raises ImportError if fastText is missing.
    """
    import fasttext  # type: ignore[import-untyped]

    lines = [" ".join(text.split()) for text in texts[:_TRAINED]]
    examples, path = folder / "lines.txt", folder / "model.bin"
    examples.write_text(
        "".join(f"__label__{number % 2} {line}\n" for number, line in enumerate(lines)),
        encoding="utf-8",
        errors="replace",
    )
    trained = fasttext.train_supervised(str(examples), epoch=1, wordNgrams=2, dim=100, thread=1, verbose=0)
    trained.save_model(str(path))
    tagger = FastTextTagger(
        name="model", columns={"model": "number"}, model=ModelFiles(str(path), "tag: fasttext"), label="__label__1"
    )
    model = fasttext.load_model(str(path))

    def tag(batch: Batch) -> object:
        rows = [*range(len(batch))]
        return compute_tags(tagger, DocumentBatch({"row": rows}, rows, batch, "bench"), sensitive=False)

    def predict(batch: Batch) -> object:
        return [model.predict(text.replace("\n", " ").encode(errors="replace").decode(), k=-1) for text in batch]

    return tag, predict


def _load_filters() -> Mapping[str, Measure]:
    """Return datatrove's filters by the name of the tagger. Raises ImportError if a package is missing."""
    import spacy  # type: ignore[import-not-found]  # noqa: F401  # datatrove imports it only with the first text
    from datatrove.data import Document

    from dataprep_assets_tests.tools.parity.datatrove_filters import FILTERS

    def load_filter(name: str) -> Measure:
        applied_filter = FILTERS[name][0]()
        return lambda batch: [applied_filter.filter(Document(text=text, id="0")) for text in batch]

    return {name: load_filter(name) for name in FILTERS}


def measure_rates(
    subjects: Mapping[str, Sequence[Measure]], batches: Sequence[Batch], runs: int
) -> Mapping[str, float]:
    """Return the MB of text per CPU-second of each subject, in the fastest of some alternating runs."""
    seconds = dict.fromkeys(subjects, float("inf"))
    for _, (name, measures) in itertools.product(range(runs), subjects.items()):
        seconds[name] = min(seconds[name], _measure_seconds(measures, batches))
    size = sum(map(_count_bytes, batches))
    return {name: size / 1e6 / spent for name, spent in seconds.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.bench.taggers", description=__doc__)
    parser.add_argument("--data", type=Path, default=SAMPLE / "data", help="folder of .jsonl.zst files")
    parser.add_argument("--times", type=int, default=1, help="how often the documents are read")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--items", type=int, nargs="*", default=[1_000, 100_000], help="numbers of benchmark items")
    parser.add_argument("--baseline-documents", type=int, default=300, help="0 to measure no baseline")
    options = parser.parse_args(argv)
    texts = [text for path in sorted(options.data.rglob("*.jsonl.zst")) for text in texts_of(path)]
    subjects: dict[str, list[Measure]] = {
        row: [load_tagger(name).tag for name in names] for row, names in SUBJECTS.items()
    }
    subjects["signatures"] = [_sign]
    baselines: dict[str, list[Measure]] = {"signatures": [_sign_plainly]}
    for count in options.items:
        search, plain_search = _load_searches(texts, count)
        subjects[f"{count:,} items"], baselines[f"{count:,} items"] = [search], [plain_search]
    with tempfile.TemporaryDirectory(prefix="dataprep-bench-fasttext-") as folder:
        try:
            tagger, loop = _train_fasttext(texts, Path(folder))
            subjects["fasttext"], baselines["fasttext"] = [tagger], [loop]
        except ImportError as error:
            print(f"fastText is not measured: {error}")
        return _print_rates(options, texts, subjects, baselines)


def _print_rates(
    options: argparse.Namespace,
    texts: Batch,
    subjects: Mapping[str, Sequence[Measure]],
    baselines: dict[str, list[Measure]],
) -> int:
    batches = list(_yield_batches(texts)) * options.times
    print(f"{len(texts):,} documents, {_count_bytes(texts) / 1e6:.1f} MB of text", flush=True)
    rates = measure_rates(subjects, batches, options.runs)
    baseline_rates: Mapping[str, float] = {}
    if options.baseline_documents:
        try:
            baselines |= {name: [measure] for name, measure in _load_filters().items()}
        except ImportError as error:
            print(f"datatrove's filters are not measured: {error}")
        baseline_rates = measure_rates(baselines, [texts[: options.baseline_documents]], 1)
    print(f"{'MB per CPU-second':<24}{'dataprep':>10}{'target':>8}{'baseline':>10}{'ratio':>7}")
    for name, rate in rates.items():
        baseline_rate = baseline_rates.get(name)
        comparison = f"{baseline_rate:>10.2f}{rate / baseline_rate:>7.1f}" if baseline_rate else ""
        print(f"{name:<24}{rate:>10.1f}{TARGETS.get(name, ''):>8}{comparison}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
