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
        indices = [index for index, text in enumerate(self.joined) if f" {text} " in around]
        weight = sum(self.weights[index] for index in indices)
        if weight < self.needed or len(indices) < 2:
            return 0.0
        if question not in indices and len(indices) < len(self.parts) - (question is not None):
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
    unique_texts = list({wording: (part, wording, weight, words) for part, wording, weight, words in short}.values())
    weight = sum(short_text[2] for short_text in unique_texts)
    if len(unique_texts) < 2 or weight < ngram * WORD:
        return None
    parts, wording, weights, words = zip(*unique_texts, strict=True)
    return WholeItem(name, parts, wording, weights, min(weight, least * WORD), sum(words))


class Wholes:
    """Wholes, ready to be looked for."""

    def __init__(self, wholes: Sequence[WholeItem], runs: WordRuns, ngram: int) -> None:
        # items that are equal are one, under the first one's name
        first_numbers: dict[frozenset[str], int] = {}
        leaders = [first_numbers.setdefault(frozenset(item.joined), number) for number, item in enumerate(wholes)]
        anchors = _anchors([wholes[number] for number in first_numbers.values()], list(first_numbers.values()), runs)
        anchored = {number for owners in anchors.values() for number in owners}
        self.names = {item.name for item, number in zip(wholes, leaders, strict=True) if number in anchored}
        self.common = {item.name for item, number in zip(wholes, leaders, strict=True) if number not in anchored}
        self.looked_for = [wholes[number] for number in sorted(anchored)]
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
        last_offsets: dict[tuple[int, int], int] = {}
        texts, ends = runs.text_of(starts).tolist(), runs.ends.tolist()
        for text, start, anchor in zip(texts, starts.tolist(), hashes.tolist(), strict=True):
            offset = start - (ends[text - 1] if text else 0)
            for number in self._anchors[anchor]:
                item = self._wholes[number]
                span = 2 * item.words + _AROUND
                # the next anchor of an item is within the words that were compared already
                if offset - last_offsets.get((text, number), -span) < span // 2:
                    continue
                last_offsets[text, number] = offset
                around = " ".join(words[text][max(0, offset - span) : offset + span])
                if share := item.share(f" {around} ", self._questions[number]):
                    best[text] = max(best.get(text, (0.0, 0, 0)), (share, item.words, -number))
        for text, (share, _, number) in best.items():
            yield text, self._wholes[-number].name, share


def _anchors(wholes: Sequence[WholeItem], numbers: Sequence[int], runs: WordRuns) -> dict[int, list[int]]:
    """The hash of a run of words → the wholes, by number, of which a text has it as its rarest."""
    having: dict[str, list[int]] = defaultdict(list)
    for item, number in zip(wholes, numbers, strict=True):
        for wording in item.joined:
            having[wording].append(number)
    texts = runs.runs_of([wording.split(" ") for wording in having])
    starts, stops = texts.weighing(_ANCHOR * WORD)
    hashes = texts.between(starts, stops).tolist()
    frequent = Counter(hashes)
    rarest: dict[int, int] = {}
    for text, run in zip(texts.text_of(starts).tolist(), hashes, strict=True):
        if text not in rarest or frequent[run] < frequent[rarest[text]]:
            rarest[text] = run
    owners = list(having.values())
    anchors: dict[int, set[int]] = defaultdict(set)
    for text, run in rarest.items():
        anchors[run].update(owners[text])
    return {run: sorted(those) for run, those in anchors.items() if len(those) <= _MOST}


def _questions(wholes: Sequence[WholeItem]) -> list[int | None]:
    """Of each whole the text that is its question: the longest that is neither a choice nor an instruction."""
    sets = Counter(item.name.partition(":")[0] for item in wholes)
    had = Counter((item.name.partition(":")[0], wording) for item in wholes for wording in item.joined)
    questions: list[int | None] = []
    for item in wholes:
        name = item.name.partition(":")[0]
        limit = max(_SHARED - 1, _INSTRUCTION * sets[name])
        texts = enumerate(zip(item.parts, item.joined, strict=True))
        own = [index for index, (part, wording) in texts if not part.alternative and had[name, wording] <= limit]
        questions.append(max(own, key=item.weights.__getitem__) if own else None)
    return questions
