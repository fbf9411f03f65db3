"""Items of benchmarks in documents: how much of an item's text a document contains, by runs of its words.

A text of an item (a question, an answer, a passage) that has enough words is looked for by itself. What counts is the
share of its n-grams that are in the document, wherever they stand: so it is found in any case, with any punctuation and
line breaks, and inside of a long page. The shorter texts of an item are in half of the world one by one, so they are
looked for together, as a whole: close to each other, in any order and with any letters or bullets between them.

N-grams that several items share (instructions, headings), and those of stop words or numbers alone, count for none. A
long text that several items share is one that is looked for, as a passage that many questions are about, unless most
of a set has it. What is not looked for is counted (`Coverage`).

Entry points: `BenchmarkTagger`, `Benchmarks`, `Coverage`.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.benchmarks.items import BenchmarkItem, BenchmarkSet
from dataprep_assets.curation.benchmarks.whole_items import WholeItem, Wholes, whole_of
from dataprep_assets.curation.duplicates.words import UNICODE, WORDS, words_of
from dataprep_assets.curation.table import Columns, DocumentBatch
from dataprep_assets.curation.tagging import VersionedTagger
from dataprep_assets.curation.word_runs import WORD, KnownHashes, Runs, WordRuns, weight_of, words_in
from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.stores.files import digest_value, sha256_file, while_unchanged

BENCHMARK, OVERLAP = "benchmark", "benchmark_overlap"
COLUMNS: Columns = {BENCHMARK: "string", OVERLAP: "number"}
"""What of an item a document contains most of, `set:row:field`, or `set:row` for its short texts together, and the
share that it has."""
VERSION = 3
_SHARED = 3
"""An n-gram that so many items have counts for none of them."""
_INSTRUCTION = 0.1
"""A text that more than this share of the items of a set have is an instruction, and none of theirs."""
_NAME = 1.5
"""Times `min_words` that a text needs in a script without spaces if it does not end as a sentence does: a name there
may have as many letters as a short question."""
_SENTENCE = re.compile(r"[.!?\u3002\uff01\uff0e\uff1f\uff61][\s\"'\u2019\u201d)\u300d\u300f\uff09\u300b]*$")
_STOP_WORDS = frozenset(
    """
    all and any are but can did for get got had has her him his how its let may not now off one our out own say see she
    the too two was way who why yet you
    about also been both could does each from have into just like made make many more most much must only other over
    same should some such than that their them then there these they this those were what when where which while will
    with would your
    """.split()  # noqa: SIM905
)
"""English words that say nothing; those of one and two letters are left out, whatever they are."""


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How many items of a set are looked for, and how many are not, by reason.

    Attributes:
        items: Items that hold a text.
        short: Those of them with too few words.
        common: Those of which every phrase is one of several items, or has only stop words or numbers.
        empty: Items without a text, which are no part of `items`.
    """

    items: int
    short: int = 0
    common: int = 0
    empty: int = 0

    @property
    def looked_for(self) -> int:
        """How many are looked for."""
        return self.items - self.short - self.common

    @property
    def share(self) -> float:
        """Which share is looked for; all of none."""
        return self.looked_for / self.items if self.items else 1.0


class _Texts:
    """The texts that are looked for by themselves, while sets are read."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.texts: list[str] = []
        self.items: list[str] = []
        self.least: list[int] = []
        self.equal: list[int] = []
        self.words: list[list[str]] = []


class Benchmarks:
    """Sets of items, ready to be looked for in texts."""

    def __init__(self, sets: Sequence[BenchmarkSet], ngram: int, least: int, first: int | None = None) -> None:
        """Read sets.

        Args:
            sets: The sets.
            ngram: Words of an n-gram.
            least: Fewest words of a text that is looked for by itself, and of what is found of several.
            first: How many items of each set; None: all, and then one of each has to be looked for.

        Raises ConfigError if of a set nothing would be looked for.
        """
        self._ngram, self._least, self._runs = ngram, least, WordRuns()
        self.of_sets = {benchmark.name: benchmark.items(first) for benchmark in sets}
        long, wholes = _Texts(), list[WholeItem]()
        for name, items in self.of_sets.items():
            for item in items:
                wholes += self._add(f"{name}:{item.row}", item, long)
        self.names, self.texts = long.names, long.texts
        self._index(long)
        self._wholes = Wholes(wholes, self._runs, ngram)
        covered = {item for item, first in zip(long.items, self._first.tolist(), strict=True) if self._sizes[first]}
        covered |= self._wholes.names
        with_text = {*long.items}
        self.coverage = {
            benchmark.name: _coverage(
                benchmark.name, self.of_sets[benchmark.name], covered, with_text | self._wholes.common
            )
            for benchmark in sets
        }
        if first is None:
            for benchmark in sets:
                self._require(benchmark)

    def _add(self, name: str, item: BenchmarkItem, long: _Texts) -> Iterator[WholeItem]:
        """Put in the texts of an item that are long enough; yield the whole of the others."""
        short, known_texts = [], set[tuple[str, str]]()
        for part in item.parts:
            words = words_of(part.text)
            wording = " ".join(words)
            # a text that a field of an item has twice is one, and one of signs alone has no words to be found
            if (part.field, wording) in known_texts or not any(map(str.isalnum, wording)):
                continue
            known_texts.add((part.field, wording))
            weights = [weight_of(word) for word in words]
            if not _is_long(part.text, weights, self._least):
                short.append((part, wording, sum(weights), len(words)))
                continue
            long.names.append(f"{name}:{part.field}")
            long.texts.append(part.text)
            long.items.append(name)
            long.words.append(words)
            long.least.append(_fewest(weights, self._ngram, self._least))
        if (whole_item := whole_of(name, short, self._ngram, self._least)) is not None:
            yield whole_item

    def _index(self, long: _Texts) -> None:
        """Sort the n-grams of all texts that are looked for by themselves."""
        runs = self._runs.runs_of(long.words)
        starts, stops = runs.weighing(self._ngram * WORD)
        hashes, owners = runs.between(starts, stops), runs.text_of(starts)
        items = np.unique(np.array(long.items, object), return_inverse=True)[1] if long.items else np.empty(0, np.int64)
        begins = np.concatenate([[0], runs.ends[:-1]]).astype(np.int64) if long.words else runs.ends
        self._first = _first_with(runs.between(begins, runs.ends), long.items)
        # a text of several items has n-grams under the first of them alone
        is_indexed = _says_something(long.words, starts, stops) & (self._first[owners] == owners)
        hashes, owners = hashes[is_indexed], owners[is_indexed]
        # each n-gram of a text once
        order = np.lexsort((owners, hashes))
        hashes, owners = hashes[order], owners[order]
        fresh = np.append(True, (hashes[1:] != hashes[:-1]) | (owners[1:] != owners[:-1]))[: len(hashes)]
        hashes, owners = hashes[fresh], owners[fresh]
        # items are counted, not texts: one item may say a phrase in several fields
        common = _of_many(hashes, items[owners])
        self.common = int(np.count_nonzero(common))
        self._hashes, self._owners = hashes[~common], owners[~common]
        # A share is of the n-grams that are left: common ones count neither for an item nor against it.
        self._sizes = np.bincount(self._owners, minlength=len(long.words))
        self._fewest = np.minimum(np.array(long.least, np.int64), self._sizes)
        self._known = KnownHashes(self._hashes)

    def _require(self, one: BenchmarkSet) -> None:
        """Raise ConfigError if nothing of a set is looked for."""
        coverage = self.coverage[one.name]
        if coverage.looked_for:
            return
        if not coverage.items:
            raise ConfigError(f"{one.key}: no item in {one.path} has a text. Correct its path or its `fields`")
        if coverage.short < coverage.items:
            raise ConfigError(
                f"{one.key}: every phrase in {one.path} occurs in {_SHARED} items or more (as in an instruction), or "
                "has only stop words and numbers, so nothing would be found. Declare the `fields` in which items "
                "differ"
            )
        raise ConfigError(
            f"{one.key}: none of the {count_of(coverage.items, 'item')} in {one.path} has "
            f"{count_of(self._least, 'word')} in a text, or {self._ngram} in two, so nothing would be found. Lower "
            "`min_words`, and `ngram` with it"
        )

    @property
    def items(self) -> list[tuple[str, str]]:
        """The name and the text of each text that is looked for by itself."""
        named_texts = zip(self.names, self.texts, self._sizes.tolist(), strict=True)
        return [(name, text) for name, text, size in named_texts if size]

    @property
    def wholes(self) -> Sequence[WholeItem]:
        """The short texts of each item that are looked for together."""
        return self._wholes.looked_for

    def best_matches(self, texts: Sequence[str]) -> tuple[list[str | None], list[float]]:
        """For each text the part of an item that it contains most of, and which share of it; None and 0 without any.

        Of parts that are contained alike the longest is told.
        """
        words = [words_of(text) for text in texts]
        runs = self._runs.runs_of(words)
        names: list[str | None] = [None] * len(texts)
        shares = [0.0] * len(texts)
        for text, part, share in self._find_parts(runs):
            names[text], shares[text] = self.names[part], round(share, 4)
        for text, name, share in self._wholes.find_best(words, runs):
            if share > shares[text]:
                names[text], shares[text] = name, round(share, 4)
        return names, shares

    def _find_parts(self, runs: Runs) -> Iterator[tuple[int, int, float]]:
        """The text that is contained most in each of the texts that contain any: its number, and the share."""
        starts, hashes = runs.among(self._ngram * WORD, self._known)
        # Each n-gram is looked up among those of all items, which are sorted: [low, high) have it.
        lows = np.searchsorted(self._hashes, hashes, side="left")
        highs = np.searchsorted(self._hashes, hashes, side="right")
        text_of = runs.text_of(starts)
        for text in np.unique(text_of).tolist():
            ranges = np.unique(np.column_stack([lows[text_of == text], highs[text_of == text]]), axis=0)
            owners = np.concatenate([self._owners[a:b] for a, b in ranges.tolist()])
            parts, counts = np.unique(owners, return_counts=True)
            share = np.where(counts >= self._fewest[parts], counts / self._sizes[parts], 0)
            best = int(np.lexsort((parts, -self._sizes[parts], -share))[0])
            if share[best]:
                yield text, int(parts[best]), float(share[best])


def _is_long(text: str, weights: Sequence[int], least: int) -> bool:
    """Return whether a text is looked for by itself."""
    words = words_in(sum(weights))
    if not _is_unspaced(weights) or _SENTENCE.search(text):
        return words >= least
    return words >= _NAME * least


def _is_unspaced(weights: Sequence[int]) -> bool:
    """Return whether most words are letters of a script without spaces."""
    return sum(weight for weight in weights if weight < WORD) > sum(weights) / 2


def _fewest(weights: Sequence[int], ngram: int, least: int) -> int:
    """The n-grams that have to be found of a text: without spaces a name in a question may be most of it."""
    if not _is_unspaced(weights):
        return 1
    return (least - ngram) * WORD * len(weights) // sum(weights)


def _says_something(
    texts: Sequence[Sequence[str]], starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return which runs have two different words that are no stop words and no numbers."""
    positions, changes, last_word = [], [], None
    position = 0
    for words in texts:
        for word in words:
            if not word.isascii() or (len(word) > 2 and not word.isdigit() and word not in _STOP_WORDS):
                changes.append(word != last_word)
                positions.append(position)
                last_word = word
            position += 1
    begin, stop = np.searchsorted(positions, starts), np.searchsorted(positions, stops)
    changed = np.concatenate([[0], np.cumsum(changes)]).astype(np.int64)
    # the first word with a meaning is followed, within the run, by another one
    is_meaningful: NDArray[np.bool_] = (stop > begin) & (
        changed[stop] - changed[np.minimum(begin + 1, len(positions))] > 0
    )
    return is_meaningful


def _of_many(hashes: NDArray[np.uint64], items: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which of the hashes, in order, `_SHARED` items or more have."""
    pairs = np.unique(np.column_stack([hashes, items.astype(np.uint64)]), axis=0)
    unique_hashes, counts = np.unique(pairs[:, 0], return_counts=True)
    many = unique_hashes[counts >= _SHARED]
    if not len(many):
        return np.zeros(len(hashes), np.bool_)
    is_shared: NDArray[np.bool_] = many[np.minimum(np.searchsorted(many, hashes), len(many) - 1)] == hashes
    return is_shared


def _first_with(texts: NDArray[np.uint64], items: Sequence[str]) -> NDArray[np.int64]:
    """For each text, of which the hash is given, the first equal one. Instructions stay each its own."""
    parts: dict[int, list[int]] = {}
    for index, text_hash in enumerate(texts.tolist()):
        parts.setdefault(text_hash, []).append(index)
    in_set = Counter(name.partition(":")[0] for name in set(items))
    firsts = np.arange(len(texts))
    for alike in parts.values():
        having = {items[index] for index in alike}
        had = Counter(item.partition(":")[0] for item in having)
        if len(having) < _SHARED or all(count <= _INSTRUCTION * in_set[name] for name, count in had.items()):
            firsts[alike] = alike[0]
    return firsts


def _coverage(name: str, items: Sequence[BenchmarkItem], covered: set[str], long_enough: set[str]) -> Coverage:
    names = [f"{name}:{item.row}" for item in items if item.parts]
    uncovered_names = [item_name for item_name in names if item_name not in covered]
    common = sum(item_name in long_enough for item_name in uncovered_names)
    return Coverage(items=len(names), short=len(uncovered_names) - common, common=common, empty=len(items) - len(names))


@dataclass(frozen=True, kw_only=True)
class BenchmarkTagger(VersionedTagger):
    """Tells of each document which item of a benchmark it contains most of.

    Attributes:
        sets: The sets of items.
        ngram: Words of an n-gram.
        least: Fewest words of a text that is looked for by itself.
    """

    sets: tuple[BenchmarkSet, ...]
    ngram: int
    least: int

    @property
    def version(self) -> str:
        files = [
            [benchmark.name, _digest(benchmark), list(benchmark.fields), *benchmark.settings.items()]
            for benchmark in self.sets
        ]
        return digest_value([VERSION, WORDS, UNICODE, self.ngram, self.least, files])

    @property
    def benchmarks(self) -> Benchmarks:
        """The items; read once a process."""
        # by the version, too: a file that was replaced under its name is read again
        return _open_benchmarks(self.sets, self.ngram, self.least, self.version)

    def look(self, batch: DocumentBatch) -> Mapping[str, Sequence[Any]]:
        names, shares = self.benchmarks.best_matches(batch.texts)
        return {BENCHMARK: names, OVERLAP: shares}


def _digest(one: BenchmarkSet) -> str:
    try:
        return _sha256(str(one.file))
    except OSError as error:
        raise ConfigError(f"{one.key}: {one.path}: {error.strerror or error}") from error


# asked for with each batch of documents
@while_unchanged
def _sha256(path: str) -> str:
    return sha256_file(Path(path))


@lru_cache(maxsize=2)
def _open_benchmarks(sets: tuple[BenchmarkSet, ...], ngram: int, least: int, version: str) -> Benchmarks:
    return Benchmarks(sets, ngram, least)
