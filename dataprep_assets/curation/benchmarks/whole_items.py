"""The short texts of an item, looked for together: a question with its choices and its answer.

One by one they are in half of the world. Together they are the item, in whatever order and with whatever letters,
numbers or bullets between them. A document has the item if it has enough of these texts, word by word, close to each
other: at least `min_words` words of them, or all where they have fewer in all; and the question among them, or all of
the choices.

Candidates first: of each text one short run of words, the rarest, is its anchor. Where a document has an anchor, the
words around it are compared.

Entry points: `WholeItem`, `whole_of`, `Wholes`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dataprep_assets.curation.benchmarks.items import ItemText
from dataprep_assets.curation.word_runs import WORD, KnownHashes, Runs, WordRuns

_ANCHOR = 4
"""Words of an anchor."""
_MOST = 64
"""Most wholes that have an anchor: one that more have finds them too often in vain."""
_INSTRUCTION, _SHARED = 0.1, 3
"""A text of this share of a set's items, and of so many, is no question of theirs."""
_AROUND = 24
"""Words around an item, besides twice its own: letters of choices, `Question`, `Answer`."""

Short = tuple[ItemText, str, int, int]
"""A text that is too short by itself: the part, its words joined by blanks, their weight, their number."""


@dataclass(frozen=True, slots=True)
class WholeItem:
    """The short texts of an item.

    Attributes:
        name: `set:row`.
        parts: The texts.
        joined: The words of each, joined by blanks.
        weights: What each weighs.
        needed: The weight that has to be found.
        words: Words of all.
    """

    name: str
    parts: Sequence[ItemText]
    joined: Sequence[str]
    weights: Sequence[int]
    needed: int
    words: int

    def share(self, around: str, question: int | None) -> float:
        """The share of the item that some words have; 0 if they have too little of it.

        Args:
            around: Words, joined by blanks, with one at each end.
            question: The text that has to be there, unless all others are; None: all have to be.
        """
        there = [at for at, text in enumerate(self.joined) if f" {text} " in around]
        weight = sum(self.weights[at] for at in there)
        if weight < self.needed or len(there) < 2:
            return 0.0
        if question not in there and len(there) < len(self.parts) - (question is not None):
            return 0.0
        return weight / sum(self.weights)


def whole_of(name: str, short: Sequence[Short], ngram: int, least: int) -> WholeItem | None:
    """The whole of an item; None if its short texts are too few, or have fewer words than an n-gram.

    Args:
        name: The item's.
        short: Its short texts.
        ngram: Fewest words that are looked for.
        least: Words that are enough, where there are more.
    """
    once = list({joined: (part, joined, weight, words) for part, joined, weight, words in short}.values())
    weight = sum(one[2] for one in once)
    if len(once) < 2 or weight < ngram * WORD:
        return None
    parts, joined, weights, words = zip(*once, strict=True)
    return WholeItem(name, parts, joined, weights, min(weight, least * WORD), sum(words))


class Wholes:
    """Wholes, ready to be looked for."""

    def __init__(self, wholes: Sequence[WholeItem], runs: WordRuns, ngram: int) -> None:
        # items that are equal are one, under the first one's name
        first: dict[frozenset[str], int] = {}
        of = [first.setdefault(frozenset(one.joined), at) for at, one in enumerate(wholes)]
        anchors = _anchors([wholes[at] for at in first.values()], list(first.values()), runs)
        anchored = {at for owners in anchors.values() for at in owners}
        self.names = {one.name for one, at in zip(wholes, of, strict=True) if at in anchored}
        self.common = {one.name for one, at in zip(wholes, of, strict=True) if at not in anchored}
        self.looked_for = [wholes[at] for at in sorted(anchored)]
        self._wholes, self._questions = wholes, _questions(wholes)
        self._anchors = anchors
        self._known = KnownHashes(np.array(sorted(anchors), np.uint64))

    def find_best(self, words: Sequence[Sequence[str]], runs: Runs) -> Iterator[tuple[int, str, float]]:
        """The item that each text has most of, of those that have any: the text's number, its name, the share.

        Args:
            words: The words of the texts.
            runs: Their runs.
        """
        starts, hashes = runs.among(_ANCHOR * WORD, self._known)
        best: dict[int, tuple[float, int, int]] = {}
        last: dict[tuple[int, int], int] = {}
        texts, ends = runs.text_of(starts).tolist(), runs.ends.tolist()
        for text, place, anchor in zip(texts, starts.tolist(), hashes.tolist(), strict=True):
            here = place - (ends[text - 1] if text else 0)
            for number in self._anchors[anchor]:
                one = self._wholes[number]
                span = 2 * one.words + _AROUND
                # the next anchor of an item is within the words that were compared already
                if here - last.get((text, number), -span) < span // 2:
                    continue
                last[text, number] = here
                around = " ".join(words[text][max(0, here - span) : here + span])
                if share := one.share(f" {around} ", self._questions[number]):
                    best[text] = max(best.get(text, (0.0, 0, 0)), (share, one.words, -number))
        for text, (share, _, number) in best.items():
            yield text, self._wholes[-number].name, share


def _anchors(wholes: Sequence[WholeItem], numbers: Sequence[int], runs: WordRuns) -> dict[int, list[int]]:
    """The hash of a run of words → the wholes, by number, of which a text has it as its rarest."""
    having: dict[str, list[int]] = defaultdict(list)
    for whole, number in zip(wholes, numbers, strict=True):
        for joined in whole.joined:
            having[joined].append(number)
    texts = runs.runs_of([joined.split(" ") for joined in having])
    starts, stops = texts.weighing(_ANCHOR * WORD)
    hashes = texts.between(starts, stops).tolist()
    frequent = Counter(hashes)
    rarest: dict[int, int] = {}
    for text, run in zip(texts.text_of(starts).tolist(), hashes, strict=True):
        if text not in rarest or frequent[run] < frequent[rarest[text]]:
            rarest[text] = run
    owners = list(having.values())
    found: dict[int, set[int]] = defaultdict(set)
    for text, run in rarest.items():
        found[run].update(owners[text])
    return {run: sorted(those) for run, those in found.items() if len(those) <= _MOST}


def _questions(wholes: Sequence[WholeItem]) -> list[int | None]:
    """Of each whole the text that is its question: the longest that is neither a choice nor an instruction."""
    sets = Counter(one.name.partition(":")[0] for one in wholes)
    had = Counter((one.name.partition(":")[0], joined) for one in wholes for joined in one.joined)
    found: list[int | None] = []
    for one in wholes:
        name = one.name.partition(":")[0]
        most = max(_SHARED - 1, _INSTRUCTION * sets[name])
        texts = enumerate(zip(one.parts, one.joined, strict=True))
        own = [at for at, (part, joined) in texts if not part.alternative and had[name, joined] <= most]
        found.append(max(own, key=one.weights.__getitem__) if own else None)
    return found
