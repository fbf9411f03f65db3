"""Write texts as signature shards, for tests of deduplication without a project."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dataprep_assets.curation.duplicates.banding import choose_banding
from dataprep_assets.curation.duplicates.candidates import CandidateSet
from dataprep_assets.curation.duplicates.kept_set import (
    ComparedPairs,
    DuplicateDecisions,
    Priority,
    ShardOrder,
    choose_kept_documents,
)
from dataprep_assets.curation.duplicates.signatures import SignatureSettings, SignatureWriter, SignedShard

VOCABULARY = [f"w{number}" for number in range(4000)]
NEAR = SignatureSettings(kind="near", normalization="words", shingle=5, banding=choose_banding(0.8, 128))
EXACT = SignatureSettings(kind="exact", normalization="words", shingle=5, banding=choose_banding(0.8, 128))


def draw_page(draw: random.Random, words: int = 120) -> list[str]:
    """Return the words of a text that resembles no other."""
    return [draw.choice(VOCABULARY) for _ in range(words)]


def edit_words(words: Sequence[str], draw: random.Random, share: float) -> list[str]:
    """Return the words of a text with this share of them replaced."""
    return [draw.choice(VOCABULARY) if draw.random() < share else word for word in words]


def replace_one(words: Sequence[str], draw: random.Random) -> list[str]:
    """Return the words with one of them replaced."""
    found = list(words)
    found[len(words) // 2] = draw.choice(VOCABULARY)
    return found


def write_signatures(folder: Path, texts: Sequence[str], settings: SignatureSettings = NEAR) -> SignedShard:
    """Write the signatures of a shard with these texts."""
    folder.mkdir(parents=True)
    with SignatureWriter(folder, settings) as writer:
        for start in range(0, len(texts), 37):
            part = texts[start : start + 37]
            writer.add(len(part), range(len(part)), part)
    return SignedShard(folder, writer.rows, writer.documents, settings.bands)


def find_kept_set(
    folder: Path,
    shards: Sequence[Sequence[str]],
    *,
    settings: SignatureSettings = NEAR,
    ages: Sequence[int] | None = None,
    values: Sequence[Sequence[float]] | None = None,
    splits: Sequence[int] | None = None,
    theirs: Sequence[bool] | None = None,
    across: str = "ignore",
    known: ComparedPairs | None = None,
    threshold: float = 0.8,
) -> tuple[DuplicateDecisions, CandidateSet]:
    """Return the kept set of texts in shards of one file each."""
    made = [write_signatures(folder / f"{number}", texts, settings) for number, texts in enumerate(shards)]
    taken = [one.digests[:, :2].any(axis=1) for one in made]
    documents = CandidateSet(made, taken)
    order = [
        ShardOrder(
            split=0 if splits is None else splits[number],
            starts=np.array([0]),
            files=np.array([number]),
            ages=np.array([] if ages is None else [ages[number]], np.int64),
            values=None if values is None else np.array(values[number], np.float64),
            theirs=theirs is not None and theirs[number],
        )
        for number in range(len(shards))
    ]
    priority = Priority(documents=documents, shards=order, by_split=across == "drop")
    return choose_kept_documents(documents, priority, threshold=threshold, across=across, known_pairs=known), documents  # type: ignore[arg-type]


def kept_texts(shards: Sequence[Sequence[str]], found: DuplicateDecisions) -> list[str]:
    """Return the kept texts, sorted."""
    every = [text for shard in shards for text in shard]
    removed = set(found.removed.tolist())
    return sorted(text for at, text in enumerate(every) if at not in removed)
