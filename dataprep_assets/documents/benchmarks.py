"""Items of benchmarks in documents: how much of an item's text a document contains, by the n-grams of its words.

Each part of an item (a question, an answer, its choices) is looked for by itself. What counts is the share of its
n-grams that are in the document, wherever they stand: so an item is found in any case, with any punctuation and line
breaks, and inside of a long page. A part of few words is not looked for, because it is in half of the world; n-grams
that several items share (instructions, headings) do not count for any of them. A whole text that several items share
is one that is looked for, as a passage that many questions are about, unless most of a set has it.

Entry points: `BenchmarkSet`, `BenchmarkTagger`, `Benchmarks`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.bounds import json_of
from dataprep_assets.documents.duplicates.words import UNICODE, ShingleHashes, words_of
from dataprep_assets.documents.table import Columns, DocumentBatch
from dataprep_assets.documents.tagging import VersionedTagger
from dataprep_assets.errors import ConfigError, DataprepError
from dataprep_assets.integrity.digest import digest_value, sha256_file
from dataprep_assets.sentences import safe, typed
from dataprep_assets.stores.files import while_unchanged

BENCHMARK, OVERLAP = "benchmark", "benchmark_overlap"
COLUMNS: Columns = {BENCHMARK: "string", OVERLAP: "number"}
"""The part of an item that a document contains most of, `set:row:field`, and the share of its n-grams that it has."""
VERSION = 2
_SHARED = 3
"""An n-gram that so many items have counts for none of them."""
_INSTRUCTION = 0.1
"""A text that more than this share of the items of a set have is an instruction, and none of theirs."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkSet:
    """A file of items: JSON lines or Parquet, an item a row.

    Attributes:
        name: The set's name.
        path: The file, or the address of one (`benchmark_files`).
        cache_dir: Where it is fetched to, if it is in a bucket.
        fields: The fields that are looked for; none: all that hold a text, or texts.
    """

    name: str
    path: Path | str
    cache_dir: Path | None = None
    fields: tuple[str, ...] = ()

    @property
    def file(self) -> Path:
        """The file on this machine; one that is elsewhere is fetched. Raises ConfigError if it is not there."""
        if isinstance(self.path, Path):
            return self.path
        from dataprep_assets.documents.benchmark_files import fetched

        try:
            return fetched(self.path, self.cache_dir)
        except DataprepError as error:
            raise ConfigError(f"decontaminate.sets.{self.name}: {typed(error)}") from error

    def parts(self) -> Iterator[tuple[str, str]]:
        """The name, `set:row:field`, and the text of each part of each item.

        Raises ConfigError for a file that cannot be read, and for a field that no item has.
        """
        missing = set(self.fields)
        for number, item in enumerate(self._items(), 1):
            if not isinstance(item, Mapping):
                raise ConfigError(f"decontaminate.sets.{self.name}: {self.path}: row {safe(number)} is no object")
            for field in self.fields or item:
                texts = item.get(field)
                if texts is not None:
                    missing.discard(field)
                for text in _texts(texts):
                    yield f"{self.name}:{number}:{field}", text
        if missing:
            raise ConfigError(f"decontaminate.sets.{self.name}: no item of {self.path} has a field {min(missing)!r}")

    def _items(self) -> Iterator[Any]:
        try:
            file = self.file
            if file.suffix == ".parquet" or str(self.path).endswith(".parquet"):
                import pyarrow.parquet as pq

                yield from pq.read_table(file).to_pylist()
                return
            for line in file.read_bytes().splitlines():
                if line.strip():
                    yield json_of(line)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"decontaminate.sets.{self.name}: {self.path}: cannot be read as JSON lines or Parquet: {error}"
            ) from error


def _texts(value: Any) -> Iterator[str]:
    """The texts of a field: one, or those of a list or an object (choices)."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        yield " ".join(text for one in value for text in _texts(one))


class Benchmarks:
    """Sets of items, ready to be looked for in texts."""

    def __init__(self, sets: Sequence[BenchmarkSet], ngram: int, least: int) -> None:
        """Read sets.

        Args:
            sets: The sets.
            ngram: Words of an n-gram.
            least: Fewest words of a part that is looked for.

        Raises ConfigError if of a set nothing would be looked for.
        """
        self.names: list[str] = []
        self.texts: list[str] = []
        self.short = 0
        words: list[list[str]] = []
        firsts = [0]
        for one in sets:
            # a text that a field of an item has twice is one
            parts = dict.fromkeys(one.parts())
            for name, text in parts:
                found = words_of(text)
                if len(found) < least:
                    self.short += 1
                    continue
                self.names.append(name)
                self.texts.append(text)
                words.append(found)
            firsts.append(len(words))
            if firsts[-2] == len(words):
                raise ConfigError(
                    f"decontaminate.sets.{one.name}: none of the {len(parts):,} texts of {one.path} has {least} words, "
                    "so nothing would be found. Lower `min_words`, and `ngram` with it"
                )
        items = np.array([_item(name) for name in self.names], object)
        first = _first_with(words, items.tolist())
        self._ngrams = ShingleHashes(ngram)
        # a text of several items has n-grams under the first of them alone
        hashes, ends = self._ngrams.of([one if first[at] == at else [] for at, one in enumerate(words)])
        owners = np.repeat(np.arange(len(words)), np.diff(ends, prepend=0))
        order = np.argsort(hashes, kind="stable")
        hashes, owners = hashes[order], owners[order]
        starts = np.flatnonzero(np.append(True, hashes[1:] != hashes[:-1])) if len(hashes) else np.empty(0, np.int64)
        stops = np.append(starts[1:], len(hashes))
        own = np.ones(len(hashes), np.bool_)
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            # items are counted, not parts: one item may say a phrase in several fields
            if stop - start >= _SHARED and len(set(items[owners[start:stop]])) >= _SHARED:
                own[start:stop] = False
        self.common = int(np.count_nonzero(~own))
        self._hashes, self._owners = hashes[own], owners[own]
        # A share is of the n-grams that are left: common ones count neither for an item nor against it.
        self._sizes = np.bincount(self._owners, minlength=len(words))
        for one, start, stop in zip(sets, firsts, firsts[1:], strict=False):
            if not self._sizes[first[start:stop]].any():
                raise ConfigError(
                    f"decontaminate.sets.{one.name}: each phrase of {one.path} is one of {_SHARED} items or more, as "
                    "those of an instruction are, so nothing would be found. Declare the `fields` in which items differ"
                )

    @property
    def items(self) -> list[tuple[str, str]]:
        """The name and the text of each part that is looked for."""
        every = zip(self.names, self.texts, self._sizes.tolist(), strict=True)
        return [(name, text) for name, text, size in every if size]

    @property
    def looked_for(self) -> int:
        """How many parts are looked for."""
        return int(np.count_nonzero(self._sizes))

    def of(self, texts: Sequence[str]) -> tuple[list[str | None], list[float]]:
        """For each text the part that it contains most of, and which share of it; None and 0 if it has nothing of any.

        Of parts that are contained alike the longest is told.
        """
        hashes, ends = self._ngrams.of([words_of(text) for text in texts])
        # Each n-gram of the texts is looked up among those of all items, which are sorted: [first, last) have it.
        first = np.searchsorted(self._hashes, hashes, side="left")
        last = np.searchsorted(self._hashes, hashes, side="right")
        hit = np.flatnonzero(last > first)
        text_of = np.searchsorted(ends, hit, side="right")
        names: list[str | None] = [None] * len(texts)
        shares = [0.0] * len(texts)
        for text in np.unique(text_of).tolist():
            here = hit[text_of == text]
            owners = np.concatenate([self._owners[a:b] for a, b in zip(first[here], last[here], strict=True)])
            parts, counts = np.unique(owners, return_counts=True)
            share = counts / self._sizes[parts]
            best = int(np.lexsort((parts, -self._sizes[parts], -share))[0])
            names[text], shares[text] = self.names[int(parts[best])], round(float(share[best]), 4)
        return names, shares


def _first_with(words: Sequence[Sequence[str]], items: Sequence[str]) -> NDArray[np.int64]:
    """For each part the first one with the same words: shape `(parts,)`. Instructions stay each its own."""
    parts: dict[str, list[int]] = {}
    for at, one in enumerate(words):
        parts.setdefault(" ".join(one), []).append(at)
    in_set = Counter(name.partition(":")[0] for name in set(items))
    found = np.arange(len(words))
    for alike in parts.values():
        having = {items[at] for at in alike}
        had = Counter(item.partition(":")[0] for item in having)
        if len(having) < _SHARED or all(count <= _INSTRUCTION * in_set[name] for name, count in had.items()):
            found[alike] = alike[0]
    return found


def _item(name: str) -> str:
    """The item of a part."""
    return name.rpartition(":")[0]


@dataclass(frozen=True, kw_only=True)
class BenchmarkTagger(VersionedTagger):
    """Tells of each document which item of a benchmark it contains most of.

    Attributes:
        sets: The sets of items.
        ngram: Words of an n-gram.
        least: Fewest words of a part that is looked for.
    """

    sets: tuple[BenchmarkSet, ...]
    ngram: int
    least: int

    @property
    def version(self) -> str:
        files = [[one.name, _digest(one), list(one.fields)] for one in self.sets]
        return digest_value([VERSION, UNICODE, self.ngram, self.least, files])

    @property
    def benchmarks(self) -> Benchmarks:
        """The items; read once a process."""
        # by the version, too: a file that was replaced under its name is read again
        return _opened(self.sets, self.ngram, self.least, self.version)

    def look(self, batch: DocumentBatch) -> Mapping[str, Sequence[Any]]:
        names, shares = self.benchmarks.of(batch.texts)
        return {BENCHMARK: names, OVERLAP: shares}


def _digest(one: BenchmarkSet) -> str:
    try:
        return _sha256(str(one.file))
    except OSError as error:
        raise ConfigError(f"decontaminate.sets.{one.name}: {one.path}: {error.strerror or error}") from error


# asked for with each batch of documents
@while_unchanged
def _sha256(path: str) -> str:
    return sha256_file(Path(path))


@lru_cache(maxsize=2)
def _opened(sets: tuple[BenchmarkSet, ...], ngram: int, least: int, version: str) -> Benchmarks:
    return Benchmarks(sets, ngram, least)


def rewrites(text: str) -> Mapping[str, str]:
    """A text in six ways in which it leaks: by name of the way."""
    words = text.split()
    return {
        "case": text.upper(),
        "punctuation": " ".join(
            word.strip(".,;:!?'\"()") + ("," if at % 5 == 4 else "") for at, word in enumerate(words)
        ),
        "white space": "  \t ".join(words),
        "line breaks": "\n".join(" ".join(words[at : at + 7]) for at in range(0, len(words), 7)),
        "embedded": f"An old forum post begins here and goes on for a while. {text} It ends here with other words.",
        "Unicode": text.replace(" ", "\u00a0").replace("'", "\u2019").replace("e", "e\u00ad"),
    }
