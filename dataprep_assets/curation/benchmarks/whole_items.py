"""Search for the short texts of an item together: a question with its choices and its answer.

A single short text occurs in many documents. Together, short texts identify the item, in any order and with any
letters, numbers or bullets between them. A document contains the item if it has enough of these texts, word by word,
close to each other. Enough means at least `min_words` words, or all words if the texts have fewer. The found texts must
include the question, or else all other texts.

Candidates are found by anchors. The anchor of a text is its rarest short run of words. A document without a text's
anchor does not contain the text. If the remaining texts may be enough, the words around the anchors are compared.

Entry points: `WholeItem`, `build_whole_item`, `WholeItemIndex`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.benchmarks.items import ItemText
from dataprep_assets.curation.duplicates.words import split_words
from dataprep_assets.curation.text_arrays.word_runs import WORD, KnownHashes, WordRuns, hash_split_texts, join_ranges

_ANCHOR_WORDS = 4
"""Words per anchor."""
_MAX_ITEMS_PER_ANCHOR = 64
"""Maximum number of items with the same anchor. More common anchors cause too many false candidates."""
_BLOCK_ANCHORS = 1 << 14
"""Number of anchors of documents that are compared at once, which limits memory, because many items may have each."""
_INSTRUCTION, _SHARED = 0.1, 3
"""Minimum share of a set's items, and number of items, that make a text an instruction instead of a question."""
_ADDITIONAL_WORDS = 24
"""Number of additional words to compare, beyond twice an item's own: letters of choices, `Question`, `Answer`."""

ShortItem = tuple[ItemText, str, int, int]
"""A text that is too short to search for by itself: the part, its words joined by blanks, their weight and number."""


@dataclass(frozen=True, slots=True)
class WholeItem:
    """The short texts of an item.

    Attributes:
        name: `set:row`.
        parts: The texts.
        joined: The words of each text, joined by blanks.
        weights: Weight of each text.
        needed: Minimum weight of the texts that must be found.
        words: Number of words of all texts.
    """

    name: str
    parts: Sequence[ItemText]
    joined: Sequence[str]
    weights: Sequence[int]
    needed: int
    words: int

    def find_texts(self, nearby_words: str) -> list[int]:
        """Return the indices of the item's texts in some words, joined by blanks, with a blank at each end."""
        return [index for index, text in enumerate(self.joined) if f" {text} " in nearby_words]

    def compute_share(self, indices: Sequence[int], question: int | None) -> float:
        """Return the share of the item in these of its texts; 0 if they are too few.

        Args:
            indices: Indices of texts.
            question: Index of the text that must be found unless all others are; None if all texts must be found.
        """
        weight = sum(self.weights[index] for index in indices)
        if weight < self.needed or len(indices) < 2:
            return 0.0
        if question not in indices and len(indices) < len(self.parts) - (question is not None):
            return 0.0
        return weight / sum(self.weights)


class _AnchoredText(NamedTuple):
    """A text with an anchor: item, number in it, words before the anchor, number of words, and hash of all words."""

    item: int
    number: int
    offset: int
    words: int
    hash: int


def build_whole_item(name: str, short: Sequence[ShortItem], ngram: int, min_words: int) -> WholeItem | None:
    """Combine an item's short texts; return None for fewer than two texts, or fewer words than an n-gram.

    Args:
        name: The item's name.
        short: Its short texts.
        ngram: Minimum number of words to search for.
        min_words: Number of words that are sufficient if the texts have more.
    """
    unique_texts = list(
        {joined_texts: (part, joined_texts, weight, words) for part, joined_texts, weight, words in short}.values()
    )
    weight = sum(short_text[2] for short_text in unique_texts)
    if len(unique_texts) < 2 or weight < ngram * WORD:
        return None
    parts, joined_texts, weights, words = zip(*unique_texts, strict=True)
    return WholeItem(name, parts, joined_texts, weights, min(weight, min_words * WORD), sum(words))


class WholeItemIndex:
    """Index of whole items for searching."""

    def __init__(self, wholes: Sequence[WholeItem], ngram: int) -> None:
        # Search only for the first of several items with the same texts, because a match cannot distinguish them.
        first_numbers: dict[frozenset[str], int] = {}
        leaders = [first_numbers.setdefault(frozenset(item.joined), number) for number, item in enumerate(wholes)]
        anchors = _group_anchor_textsby_anchor(wholes, list(first_numbers.values()))
        anchored = {text.item for texts in anchors.values() for text in texts}
        self.names = {item.name for item, number in zip(wholes, leaders, strict=True) if number in anchored}
        self.common = {item.name for item, number in zip(wholes, leaders, strict=True) if number not in anchored}
        self.looked_for = [wholes[number] for number in sorted(anchored)]
        self._wholes, self._questions = wholes, _find_questions(wholes)
        self._hashes = np.array(sorted(anchors), np.uint64)
        self._known = KnownHashes(self._hashes)
        # The texts with each anchor, one anchor after the other: `_ends` has the end of each anchor's texts.
        owners = [anchors[anchor] for anchor in self._hashes.tolist()]
        self._ends = np.cumsum([0, *map(len, owners)])
        texts = [text for texts in owners for text in texts]
        self._items = np.array([text.item for text in texts], np.int64)
        self._weights = np.array([wholes[text.item].weights[text.number] for text in texts], np.int64)
        self._is_question = np.array([self._questions[text.item] == text.number for text in texts], np.bool_)
        self._offsets = np.array([text.offset for text in texts], np.int64)
        self._sizes = np.array([text.words for text in texts], np.int64)
        self._text_hashes = np.array([text.hash for text in texts], np.uint64)
        self._words = hash_split_texts([text.split(" ") for item in wholes for text in item.joined])
        self._first_texts = [0, *accumulate(len(item.joined) for item in wholes)]
        self._needed = np.array([item.needed for item in wholes], np.int64)
        has_question = np.array([question is not None for question in self._questions], np.bool_)
        self._other_texts = np.array([len(item.parts) for item in wholes], np.int64) - has_question
        # A text without an anchor may be in any document.
        self._free_weights = np.array([sum(item.weights) for item in wholes], np.int64) - self._sum_texts(self._weights)
        self._free_texts = self._other_texts + has_question - self._sum_texts(np.ones_like(self._items))
        self._free_questions = has_question - self._sum_texts(self._is_question)
        numbers = np.arange(len(wholes))
        self._is_free = self._may_contain(numbers, self._free_weights, self._free_texts, self._free_questions > 0)

    def find_best(self, texts: Sequence[str], runs: WordRuns) -> Iterator[tuple[int, str, float]]:
        """Yield the best item of each text that contains one: the text's number, the item's name, the share.

        Args:
            texts: The texts.
            runs: The runs of their words.
        """
        best: dict[int, tuple[float, int, int]] = {}
        last_offsets: dict[tuple[int, int], int] = {}
        words: dict[int, list[str]] = {}
        hashes: dict[int, set[int]] = {}
        ends = runs.ends.tolist()
        for text, start, number in self._find_candidates(runs):
            begin = ends[text - 1] if text else 0
            if text not in hashes:
                hashes[text] = set(runs.hashes[begin : ends[text]].tolist())
            item, question = self._wholes[number], self._questions[number]
            possible_texts = [
                index for index, text_words in enumerate(self._get_words(number)) if hashes[text].issuperset(text_words)
            ]
            if not item.compute_share(possible_texts, question):
                continue
            # Split only texts that have the words of a candidate, because this takes longer than the search.
            if text not in words:
                words[text] = split_words(texts[text])
            offset = start - begin
            span = 2 * item.words + _ADDITIONAL_WORDS
            # Skip an anchor near the last compared anchor, because the words around it were already compared with
            # this item.
            if offset - last_offsets.get((text, number), -span) < span // 2:
                continue
            last_offsets[text, number] = offset
            around = " ".join(words[text][max(0, offset - span) : offset + span])
            if share := item.compute_share(item.find_texts(f" {around} "), question):
                best[text] = max(best.get(text, (0.0, 0, 0)), (share, item.words, -number))
        for text, (share, _, number) in best.items():
            yield text, self._wholes[-number].name, share

    def _get_words(self, number: int) -> Iterator[Sequence[int]]:
        """Yield the hashes of the words of each text of an item."""
        for index in range(self._first_texts[number], self._first_texts[number + 1]):
            yield self._words.hashes[self._words.ends[index - 1] if index else 0 : self._words.ends[index]].tolist()

    def _find_candidates(self, runs: WordRuns) -> Iterator[tuple[int, int, int]]:
        """Yield the text and the start of each anchor, and the number of an item that the text may contain."""
        starts, hashes = runs.find_known_runs(_ANCHOR_WORDS * WORD, self._known)
        texts, anchors = runs.find_texts(starts), np.searchsorted(self._hashes, hashes)
        possible_items = self._find_possible_items(runs, texts, starts, anchors)
        is_possible = np.isin(texts, possible_items // max(1, len(self._wholes)))
        for anchor_texts, anchor_starts, owners in self._join_owners(
            texts[is_possible], starts[is_possible], anchors[is_possible]
        ):
            items = self._items[owners]
            indices = np.flatnonzero(np.isin(anchor_texts * len(self._wholes) + items, possible_items))
            yield from zip(
                anchor_texts[indices].tolist(), anchor_starts[indices].tolist(), items[indices].tolist(), strict=True
            )

    def _find_possible_items(
        self, runs: WordRuns, texts: NDArray[np.int64], starts: NDArray[np.int64], anchors: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the items that each text may contain, in view of all its anchors: text times items plus item."""
        owners_of_texts = [np.empty(0, np.int64)]
        for anchor_texts, anchor_starts, owners in self._join_owners(texts, starts, anchors):
            begins = anchor_starts - self._offsets[owners]
            stops = begins + self._sizes[owners]
            fits = np.flatnonzero(
                (runs.find_texts(begins) == anchor_texts) & (stops <= runs.ends[anchor_texts]) & (begins >= 0)
            )
            is_counted = self._is_free[self._items[owners]]
            hashes = runs.hash_runs(begins[fits], stops[fits])
            is_counted[fits] |= hashes == self._text_hashes[owners[fits]]
            owners_of_texts.append(np.unique(anchor_texts[is_counted] * len(self._items) + owners[is_counted]))
        texts, owners = np.divmod(np.unique(np.concatenate(owners_of_texts)), max(1, len(self._items)))
        pairs, inverse = np.unique(texts * len(self._wholes) + self._items[owners], return_inverse=True)
        items = pairs % max(1, len(self._wholes))
        possible_pairs: NDArray[np.int64] = pairs[
            self._may_contain(
                items,
                self._free_weights[items] + np.bincount(inverse, self._weights[owners]),
                self._free_texts[items] + np.bincount(inverse),
                self._free_questions[items] + np.bincount(inverse, self._is_question[owners]) > 0,
            )
        ]
        return possible_pairs

    def _may_contain(
        self, items: NDArray[np.int64], weights: NDArray[Any], counts: NDArray[Any], has_question: NDArray[Any]
    ) -> NDArray[np.bool_]:
        """Return whether items can have a share, as `compute_share` decides, if these of their texts are there."""
        is_possible: NDArray[np.bool_] = (weights >= self._needed[items]) & (counts >= 2)
        return is_possible & (has_question | (counts >= self._other_texts[items]))

    def _join_owners(
        self, texts: NDArray[np.int64], starts: NDArray[np.int64], anchors: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
        """Yield, in blocks, the text and the start of each anchor for each of the anchor's texts of items."""
        for begin in range(0, len(starts), _BLOCK_ANCHORS):
            block = slice(begin, begin + _BLOCK_ANCHORS)
            lows, highs = self._ends[anchors[block]], self._ends[anchors[block] + 1]
            yield (
                np.repeat(texts[block], highs - lows),
                np.repeat(starts[block], highs - lows),
                join_ranges(lows, highs),
            )

    def _sum_texts(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Return the sum over the texts with an anchor of each item."""
        return np.bincount(self._items, values, len(self._wholes)).astype(np.int64)


def _group_anchor_textsby_anchor(wholes: Sequence[WholeItem], numbers: Sequence[int]) -> dict[int, list[_AnchoredText]]:
    """Return the hash of each anchor → the texts of the items with these numbers whose rarest run is this anchor."""
    numbered_texts: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for number in numbers:
        for index, joined_text in enumerate(wholes[number].joined):
            numbered_texts[joined_text].append((number, index))
    texts = hash_split_texts([joined_text.split(" ") for joined_text in numbered_texts])
    starts, stops = texts.find_runs_of_weight(_ANCHOR_WORDS * WORD)
    hashes = texts.hash_runs(starts, stops).tolist()
    frequent = Counter(hashes)
    rarest: dict[int, tuple[int, int]] = {}
    for text, start, run in zip(texts.find_texts(starts).tolist(), starts.tolist(), hashes, strict=True):
        if text not in rarest or frequent[run] < frequent[rarest[text][0]]:
            rarest[text] = run, start
    sizes = np.diff(texts.ends, prepend=0)
    begins, text_hashes = texts.ends - sizes, texts.hash_runs(texts.ends - sizes, texts.ends)
    owners = list(numbered_texts.values())
    anchors: dict[int, list[_AnchoredText]] = defaultdict(list)
    for text, (run, start) in rarest.items():
        facts = start - int(begins[text]), int(sizes[text]), int(text_hashes[text])
        anchors[run] += [_AnchoredText(number, index, *facts) for number, index in owners[text]]
    return {
        run: sorted(anchor_textsof_run)
        for run, anchor_textsof_run in anchors.items()
        if len({text.item for text in anchor_textsof_run}) <= _MAX_ITEMS_PER_ANCHOR
    }


def _find_questions(wholes: Sequence[WholeItem]) -> list[int | None]:
    """Return the question of each item: its longest text that is neither a choice nor an instruction."""
    sets = Counter(item.name.partition(":")[0] for item in wholes)
    text_counts = Counter((item.name.partition(":")[0], wording) for item in wholes for wording in item.joined)
    questions: list[int | None] = []
    for item in wholes:
        name = item.name.partition(":")[0]
        limit = max(_SHARED - 1, _INSTRUCTION * sets[name])
        texts = enumerate(zip(item.parts, item.joined, strict=True))
        candidates = [
            index for index, (part, wording) in texts if not part.alternative and text_counts[name, wording] <= limit
        ]
        questions.append(max(candidates, key=item.weights.__getitem__) if candidates else None)
    return questions
