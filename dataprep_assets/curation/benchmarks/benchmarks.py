"""Search for benchmark items in documents: the share of an item's text in a document, by word n-grams.

A text of an item (a question, an answer, a passage) with enough words is searched for by itself. Its share is the share
of its n-grams that are in the document at any position. The search therefore ignores case, punctuation, line breaks and
the length of the page. Shorter texts of an item occur in many documents, so they are searched for together, as a whole.
They must be close to each other, in any order and with any letters or bullets between them.

N-grams that several items share (instructions, headings) and n-grams of only stop words or numbers do not count. A long
text that several items share is searched for, such as a passage for many questions, unless most items of a set have it.
`Coverage` counts the items that are not searched for.

Entry points: `BenchmarkTagger`, `Benchmarks`, `Coverage`.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.benchmarks.columns import BENCHMARK, DESCRIPTIONS, OVERLAP
from dataprep_assets.curation.benchmarks.items import BenchmarkItem, BenchmarkSet
from dataprep_assets.curation.benchmarks.whole_items import WholeItem, WholeItemIndex, build_whole_item
from dataprep_assets.curation.duplicates.words import UNICODE, WORDS, split_words
from dataprep_assets.curation.table import DocumentBatch
from dataprep_assets.curation.tagging import VersionedTagger
from dataprep_assets.curation.text_arrays.word_runs import (
    WORD,
    KnownHashes,
    WordRuns,
    count_words,
    hash_split_texts,
    hash_texts,
    join_ranges,
    weigh_word,
)
from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.stores.files import cache_by_file, digest_value, sha256_file

VERSION = 3
_SHARED = 3
"""An n-gram that occurs in this many items or more counts for none of them."""
_INSTRUCTION = 0.1
"""A text in more than this share of a set's items is an instruction, which does not identify an item."""
_NAME_FACTOR = 1.5
"""Factor on `min_words` for a text in a script without spaces that does not end like a sentence.

In these scripts, a name may have as many letters as a short question.
"""
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
"""English words without a meaning of their own. Words of one and two letters always count as stop words."""


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Numbers of items that are searched for, and of items that are not searched for, by reason.

    Attributes:
        items: Items with a text.
        short: Items with too few words.
        common: Items whose phrases all occur in several items, or have only stop words or numbers.
        empty: Items without a text, which are not part of `items`.
    """

    items: int
    short: int = 0
    common: int = 0
    empty: int = 0

    @property
    def looked_for(self) -> int:
        """Number of items that are searched for."""
        return self.items - self.short - self.common

    @property
    def share(self) -> float:
        """Share of the items that are searched for; 1 without items."""
        return self.looked_for / self.items if self.items else 1.0


class FoundItem(NamedTuple):
    """The part of an item that a text contains, and its share; None and 0 if nothing matches."""

    name: str | None
    share: float


class _Texts:
    """Texts to search for by themselves, collected while sets are read."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.texts: list[str] = []
        self.items: list[str] = []
        self.least: list[int] = []
        self.equal: list[int] = []
        self.words: list[list[str]] = []


class Benchmarks:
    """Search index of several sets of benchmark items."""

    def __init__(self, sets: Sequence[BenchmarkSet], ngram: int, min_words: int, first: int | None = None) -> None:
        """Read sets.

        Args:
            sets: The sets.
            ngram: Words per n-gram.
            min_words: Minimum number of words of a text that is searched for by itself, and minimum number of words to
                find of an item's short texts.
            first: Number of items to read per set. With None, all items are read, and each set must have at least one
                searchable item.

        Raises ConfigError if a set has no searchable item.
        """
        self._ngram, self._min_words = ngram, min_words
        self.of_sets = {benchmark.name: benchmark.read_items(first) for benchmark in sets}
        long, wholes = _Texts(), list[WholeItem]()
        for name, items in self.of_sets.items():
            for item in items:
                wholes += self._add(f"{name}:{item.row}", item, long)
        self.names, self.texts = long.names, long.texts
        self._index_ngrams(long)
        self._wholes = WholeItemIndex(wholes, ngram)
        covered = {item for item, first in zip(long.items, self._first.tolist(), strict=True) if self._sizes[first]}
        covered |= self._wholes.names
        with_text = {*long.items}
        self.coverage = {
            benchmark.name: _measure_coverage(
                benchmark.name, self.of_sets[benchmark.name], covered, with_text | self._wholes.common
            )
            for benchmark in sets
        }
        if first is None:
            for benchmark in sets:
                self._require(benchmark)

    def _add(self, name: str, item: BenchmarkItem, long: _Texts) -> Iterator[WholeItem]:
        """Add an item's long texts to `long`, and yield its short texts as a whole item if there are enough words."""
        short, known_texts = [], set[tuple[str, str]]()
        for part in item.parts:
            words = split_words(part.text)
            text = " ".join(words)
            # Skip a text that occurred before in the same field of the item, and a text without letters or digits,
            # which has no words to search for.
            if (part.field, text) in known_texts or not any(map(str.isalnum, text)):
                continue
            known_texts.add((part.field, text))
            weights = [weigh_word(word) for word in words]
            if not _is_long(part.text, weights, self._min_words):
                short.append((part, text, sum(weights), len(words)))
                continue
            long.names.append(f"{name}:{part.field}")
            long.texts.append(part.text)
            long.items.append(name)
            long.words.append(words)
            long.least.append(_compute_min_ngrams(weights, self._ngram, self._min_words))
        if (whole_item := build_whole_item(name, short, self._ngram, self._min_words)) is not None:
            yield whole_item

    def _index_ngrams(self, long: _Texts) -> None:
        """Build the sorted index of the n-grams of all texts that are searched for by themselves."""
        runs = hash_split_texts(long.words)
        starts, stops = runs.find_runs_of_weight(self._ngram * WORD)
        hashes, owners = runs.hash_runs(starts, stops), runs.find_texts(starts)
        items = np.unique(np.array(long.items, object), return_inverse=True)[1] if long.items else np.empty(0, np.int64)
        begins = np.concatenate([[0], runs.ends[:-1]]).astype(np.int64) if long.words else runs.ends
        self._first = _find_first_equal(runs.hash_runs(begins, runs.ends), long.items)
        # If several items have the same text, index it for the first item only, because a match cannot distinguish the
        # items.
        is_indexed = _has_content_words(long.words, starts, stops) & (self._first[owners] == owners)
        hashes, owners = hashes[is_indexed], owners[is_indexed]
        # Index each n-gram of a text only once, because shares count distinct n-grams.
        order = np.lexsort((owners, hashes))
        hashes, owners = hashes[order], owners[order]
        fresh = np.append(True, (hashes[1:] != hashes[:-1]) | (owners[1:] != owners[:-1]))[: len(hashes)]
        hashes, owners = hashes[fresh], owners[fresh]
        # Count the items, not the texts, that contain an n-gram, because one item may repeat a phrase in several
        # fields.
        common = _find_shared(hashes, items[owners])
        self.common = int(np.count_nonzero(common))
        self._hashes, self._owners = hashes[~common], owners[~common]
        # Compute shares from the remaining n-grams only, because a common n-gram is no evidence that a document
        # contains an item.
        self._sizes = np.bincount(self._owners, minlength=len(long.words))
        self._fewest = np.minimum(np.array(long.least, np.int64), self._sizes)
        self._known = KnownHashes(self._hashes)

    def _require(self, benchmark: BenchmarkSet) -> None:
        """Raise ConfigError if no item of a set is searched for."""
        coverage = self.coverage[benchmark.name]
        if coverage.looked_for:
            return
        if not coverage.items:
            raise ConfigError(f"{benchmark.key}: no item in {benchmark.path} has text. Correct `path` or `fields`")
        if coverage.short < coverage.items:
            raise ConfigError(
                f"{benchmark.key}: every phrase in {benchmark.path} occurs in at least {_SHARED} items (like a common "
                "instruction), or has only stop words and numbers, so nothing would be found. List the fields in "
                "which items differ in `fields`"
            )
        raise ConfigError(
            f"{benchmark.key}: all texts in {benchmark.path} are too short: no item has a text of at least "
            f"{count_of(self._min_words, 'word')}, or two texts of at least {count_of(self._ngram, 'word')} together. "
            "Lower `min_words` and `ngram`"
        )

    @property
    def items(self) -> list[tuple[str, str]]:
        """Name and content of each text that is searched for by itself."""
        named_texts = zip(self.names, self.texts, self._sizes.tolist(), strict=True)
        return [(name, text) for name, text, size in named_texts if size]

    @property
    def whole_items(self) -> Sequence[WholeItem]:
        """The short texts of each item that are searched for together."""
        return self._wholes.looked_for

    def find_best_matches(self, texts: Sequence[str]) -> tuple[list[str | None], list[float]]:
        """Return, for each text, the best matching part of an item and its share; None and 0 if nothing matches.

        If several parts have the same share, the longest is returned.
        """
        runs = hash_texts(texts)
        names: list[str | None] = [None] * len(texts)
        shares = [0.0] * len(texts)
        for text, part, share in self._find_parts(runs):
            names[text], shares[text] = self.names[part], round(share, 4)
        for text, name, share in self._wholes.find_best(texts, runs):
            if share > shares[text]:
                names[text], shares[text] = name, round(share, 4)
        return names, shares

    def find_best_items(self, rows: Sequence[Sequence[str]]) -> list[FoundItem]:
        """Return, for each row, the best matching part of an item in any of the row's texts."""
        names, shares = self.find_best_matches([text for texts in rows for text in texts])
        matches = map(FoundItem, names, shares)
        # Keep the first of equal shares, so that the result does not depend on the other rows.
        return [
            max((next(matches) for _ in texts), key=lambda item: item.share, default=FoundItem(None, 0.0))
            for texts in rows
        ]

    def _find_parts(self, runs: WordRuns) -> Iterator[tuple[int, int, float]]:
        """Yield the best matching part of each text with a match: number of the text, number of the part, share."""
        starts, hashes = runs.find_known_runs(self._ngram * WORD, self._known)
        if not len(starts):
            return
        # Count each n-gram of a text once.
        texts = runs.find_texts(starts)
        order = np.lexsort((hashes, texts))
        texts, hashes = texts[order], hashes[order]
        is_first = np.append(True, (texts[1:] != texts[:-1]) | (hashes[1:] != hashes[:-1]))
        texts, hashes = texts[is_first], hashes[is_first]
        # `_hashes` is sorted, so the owners of each n-gram are at the positions [low, high) of `_owners`.
        lows = np.searchsorted(self._hashes, hashes, side="left")
        highs = np.searchsorted(self._hashes, hashes, side="right")
        owners = self._owners[join_ranges(lows, highs)]
        parts_of_texts, counts = np.unique(
            np.repeat(texts, highs - lows) * len(self._sizes) + owners, return_counts=True
        )
        texts, parts = np.divmod(parts_of_texts, len(self._sizes))
        shares = np.where(counts >= self._fewest[parts], counts / self._sizes[parts], 0)
        order = np.lexsort((parts, -self._sizes[parts], -shares, texts))
        best = order[np.append(True, np.diff(texts[order]) > 0)]
        for text, part, share in zip(texts[best].tolist(), parts[best].tolist(), shares[best].tolist(), strict=True):
            if share:
                yield text, part, share


def _is_long(text: str, weights: Sequence[int], min_words: int) -> bool:
    """Return whether a text has enough words to be searched for by itself."""
    words = count_words(sum(weights))
    if not _is_unspaced(weights) or _SENTENCE.search(text):
        return words >= min_words
    return words >= _NAME_FACTOR * min_words


def _is_unspaced(weights: Sequence[int]) -> bool:
    """Return whether most words are letters of a script without spaces."""
    return sum(weight for weight in weights if weight < WORD) > sum(weights) / 2


def _compute_min_ngrams(weights: Sequence[int], ngram: int, min_words: int) -> int:
    """Return the minimum number of a text's n-grams that a document must contain.

    One is enough, except in scripts without spaces, where a name may be most of a question.
    """
    if not _is_unspaced(weights):
        return 1
    return (min_words - ngram) * WORD * len(weights) // sum(weights)


def _has_content_words(
    texts: Sequence[Sequence[str]], starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return a mask of the runs with two different words that are neither stop words nor numbers."""
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
    # Keep a run only if it has two different content words. This is the case if `changed`, which counts changes between
    # neighboring content words, increases within the run.
    is_meaningful: NDArray[np.bool_] = (stop > begin) & (
        changed[stop] - changed[np.minimum(begin + 1, len(positions))] > 0
    )
    return is_meaningful


def _find_shared(hashes: NDArray[np.uint64], items: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask of the hashes that are in `_SHARED` items or more."""
    pairs = np.unique(np.column_stack([hashes, items.astype(np.uint64)]), axis=0)
    unique_hashes, counts = np.unique(pairs[:, 0], return_counts=True)
    many = unique_hashes[counts >= _SHARED]
    if not len(many):
        return np.zeros(len(hashes), np.bool_)
    is_shared: NDArray[np.bool_] = many[np.minimum(np.searchsorted(many, hashes), len(many) - 1)] == hashes
    return is_shared


def _find_first_equal(texts: NDArray[np.uint64], items: Sequence[str]) -> NDArray[np.int64]:
    """Return, for each text, the index of the first text with the same hash. Instructions are never merged."""
    parts: dict[int, list[int]] = {}
    for index, text_hash in enumerate(texts.tolist()):
        parts.setdefault(text_hash, []).append(index)
    in_set = Counter(name.partition(":")[0] for name in set(items))
    firsts = np.arange(len(texts))
    for equal_texts in parts.values():
        sharing_items = {items[index] for index in equal_texts}
        sharing_counts = Counter(item.partition(":")[0] for item in sharing_items)
        if len(sharing_items) < _SHARED or all(
            count <= _INSTRUCTION * in_set[name] for name, count in sharing_counts.items()
        ):
            firsts[equal_texts] = equal_texts[0]
    return firsts


def _measure_coverage(name: str, items: Sequence[BenchmarkItem], covered: set[str], long_enough: set[str]) -> Coverage:
    names = [f"{name}:{item.row}" for item in items if item.parts]
    uncovered_names = [item_name for item_name in names if item_name not in covered]
    common = sum(item_name in long_enough for item_name in uncovered_names)
    return Coverage(items=len(names), short=len(uncovered_names) - common, common=common, empty=len(items) - len(names))


@dataclass(frozen=True, kw_only=True)
class BenchmarkTagger(VersionedTagger):
    """Tagger that finds the benchmark item with the largest share of its text in a document.

    Attributes:
        sets: The sets of items.
        ngram: Words per n-gram.
        min_words: Minimum number of words of a text that is searched for by itself.
    """

    sets: tuple[BenchmarkSet, ...]
    ngram: int
    min_words: int

    @property
    def descriptions(self) -> Mapping[str, str]:
        return DESCRIPTIONS

    @property
    def version(self) -> str:
        files = [
            [benchmark.name, _digest_benchmark(benchmark), list(benchmark.fields), *benchmark.settings.items()]
            for benchmark in self.sets
        ]
        return digest_value([VERSION, WORDS, UNICODE, self.ngram, self.min_words, files])

    @property
    def is_shared(self) -> bool:
        return True

    @property
    def benchmarks(self) -> Benchmarks:
        """The index of the items, built once per process."""
        # Include the version in the cache key, so that a replaced file with the same name is read again.
        return _open_benchmarks(self.sets, self.ngram, self.min_words, self.version)

    def tag_batch(self, batch: DocumentBatch) -> Mapping[str, Sequence[Any]]:
        names, shares = self.benchmarks.find_best_matches(batch.texts)
        return {BENCHMARK: names, OVERLAP: shares}


def _digest_benchmark(benchmark: BenchmarkSet) -> str:
    try:
        return _digest_file(str(benchmark.file))
    except OSError as error:
        raise ConfigError(f"{benchmark.key}: {benchmark.path}: {error.strerror or error}. Correct the path") from error


# Cache the digest, because every batch of documents needs it.
@cache_by_file
def _digest_file(path: str) -> str:
    return sha256_file(Path(path))


@lru_cache(maxsize=2)
def _open_benchmarks(sets: tuple[BenchmarkSet, ...], ngram: int, min_words: int, version: str) -> Benchmarks:
    return Benchmarks(sets, ngram, min_words)
