"""Measure curation of text: `python -m dataprep_assets_tests.tools.bench.taggers` or `make bench-curation`.

The table shows MB of text per CPU-second in one process: for each built-in tagger, for several together, which share
the normalized and split texts, and for the signatures of near-duplicates. If datatrove and spaCy are installed, it also
shows datatrove's filters of the same names, on the first documents.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from dataprep_assets.curation.duplicates.banding import choose_banding
from dataprep_assets.curation.duplicates.signatures import SignatureSettings, Signer
from dataprep_assets.curation.tagging import load_tagger
from dataprep_assets_tests.samples import SAMPLE
from dataprep_assets_tests.tools.parity.datatrove import texts_of

SUBJECTS = {
    **{name: (name,) for name in ("repetition", "gopher", "c4", "fineweb", "personal")},
    "gopher, c4 and fineweb": ("gopher", "c4", "fineweb"),
    "all but personal": ("repetition", "gopher", "c4", "fineweb"),
    "all": ("repetition", "gopher", "c4", "fineweb", "personal"),
}
"""Row of the table → its taggers."""
_BATCH_BYTES = 4 << 20
"""Bytes of a batch, as when a corpus is built."""

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
    signer = Signer(
        SignatureSettings(kind="near", normalization="words", shingle=5, banding=choose_banding(0.8, 128), key=None)
    )
    hashes, ends = signer.compute_shingles(batch)
    signer.compute_digests(batch, batch, hashes, ends)
    signer.compute_bands(hashes, ends)


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
    parser.add_argument("--datatrove-documents", type=int, default=300, help="0 to measure no filter")
    options = parser.parse_args(argv)
    texts = [text for path in sorted(options.data.rglob("*.jsonl.zst")) for text in texts_of(path)]
    batches = list(_yield_batches(texts)) * options.times
    subjects: dict[str, list[Measure]] = {
        row: [load_tagger(name).tag for name in names] for row, names in SUBJECTS.items()
    }
    subjects["signatures"] = [_sign]
    print(f"{len(texts):,} documents, {_count_bytes(texts) / 1e6:.1f} MB of text", flush=True)
    rates = measure_rates(subjects, batches, options.runs)
    filter_rates: Mapping[str, float] = {}
    if options.datatrove_documents:
        try:
            filters = {name: [measure] for name, measure in _load_filters().items()}
        except ImportError as error:
            print(f"datatrove's filters are not measured: {error}")
        else:
            filter_rates = measure_rates(filters, [texts[: options.datatrove_documents]], 1)
    print(f"{'MB per CPU-second':<24}{'dataprep':>10}{'datatrove':>11}{'ratio':>7}")
    for name, rate in rates.items():
        filter_rate = filter_rates.get(name)
        comparison = f"{filter_rate:>11.2f}{rate / filter_rate:>7.1f}" if filter_rate else ""
        print(f"{name:<24}{rate:>10.1f}{comparison}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
