"""Checks of a dataset's duplicates: a rebuild matches, planted duplicates are found, and splits are disjoint."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dataprep_assets.curation.duplicates.declaration import DuplicateSearch
from dataprep_assets.curation.duplicates.duplicates_files import ACROSS, DuplicatesFacts, read_pairs
from dataprep_assets.curation.duplicates.kept_set import ComparedPairs
from dataprep_assets.curation.duplicates.planted import PlantedPairs, plant_pairs
from dataprep_assets.curation.duplicates.recall_plot import draw_recall, group_points
from dataprep_assets.curation.duplicates.signatures import SignatureSettings
from dataprep_assets.curation.table import read_joined_tables
from dataprep_assets.engine.checks.check import (
    FILES_INTACT,
    SHOWN,
    Check,
    Finding,
    Level,
    OpenedArtifact,
    build_verdict,
    choose_sample_count,
    draw_documents,
    set_level,
)
from dataprep_assets.errors import count_of
from dataprep_assets.table import format_share

SAMPLED_SHARDS, SAMPLED_TEXTS, MIN_WORDS = 4, 24, 20
"""Number of sampled shards, of sampled texts per shard, and minimum words per text, for enough shingles."""
_SAMPLED_CHARACTERS = 20_000
"""Maximum number of characters of a sampled text."""
_SLACK, _DEVIATIONS, _FLOOR_MARGIN = 0.01, 4.0, 0.05
"""Tolerance for chance, as a share of all pairs and in standard deviations; distance of the default floor below the
predicted recall."""


@dataclass(frozen=True)
class SearchedTexts(OpenedArtifact):
    """Duplicates of a dataset, opened for checks.

    Attributes:
        search: The declaration of the duplicates.
        signing: The settings of the signatures.
        splits: The names of the dataset's splits.
        level: The number of pairs that checks rebuild.
        sensitive: Whether messages must not show names of files.
        noun: Noun for a text, in messages.
        sample: Returns some texts.
        compare: Compares all pairs except some pairs again; returns a sentence for each file and claim that differs.
    """

    search: DuplicateSearch
    signing: SignatureSettings
    splits: Sequence[str]
    level: Level
    sensitive: bool
    noun: str
    sample: Callable[[], Iterable[str]]
    compare: Callable[[ComparedPairs], Iterable[str]]

    def draw_texts(self) -> list[str]:
        """Return the beginnings of the sampled texts that have enough words for planted pairs."""
        return [text[:_SAMPLED_CHARACTERS] for text in self.sample() if len(text.split()) >= MIN_WORDS]


def check_recall(duplicates: SearchedTexts) -> Finding:
    """Check that near-duplicates planted in sampled texts are found as often as the bands predict."""
    search, texts = duplicates.search, duplicates.draw_texts()
    if not texts:
        return Finding(
            passed=True, summary=f"No text in the sample has {MIN_WORDS} words, so nothing could be planted."
        )
    planted = plant_pairs(texts, duplicates.signing, duplicates.seed)
    similarities = np.concatenate([one.similarities for one in planted])
    shared = np.concatenate([one.shared for one in planted])
    probabilities = search.banding.match_probability(similarities)
    threshold = search.similarity
    is_above = similarities >= threshold
    share, predicted = float(shared.mean()), float(probabilities.mean())
    # Each pair is found independently with its own probability p, so the variance of the number of found pairs is the
    # sum of p (1 - p).
    deviation = float(np.sqrt((probabilities * (1 - probabilities)).sum())) / len(similarities)
    # Use a recall of 1 if no planted pair reaches the threshold, because there is no pair to miss.
    recall = float(shared[is_above].mean()) if is_above.any() else 1.0
    predicted_above = float(probabilities[is_above].mean()) if is_above.any() else 1.0
    floor = search.recall if search.recall is not None else predicted_above - _FLOOR_MARGIN
    defects = []
    if recall < floor:
        defects.append(
            f"{format_share(recall)} of the planted near-duplicates at or above the threshold are found, but "
            f"at least {format_share(floor)} must be"
        )
    if share < predicted - _SLACK - _DEVIATIONS * deviation:
        predicted_share = format_share(predicted)
        defects.append(f"{format_share(share)} of all planted pairs share a band, but {predicted_share} are expected")
    finding = build_verdict(
        defects,
        f"{format_share(recall)} of {int(is_above.sum()):,} planted near-duplicates at or above the threshold are "
        f"found; the bands predict {format_share(predicted_above)}. No pair below the threshold is dropped.",
        "Raise `duplicates.permutations`, or lower `duplicates.recall`",
        facts={
            "planted": len(similarities),
            "recall_%": round(100 * recall, 3),
            "predicted_%": round(100 * predicted_above, 3),
            "sharing_band_%": round(100 * share, 3),
            "predicted_sharing_band_%": round(100 * predicted, 3),
        },
        table=[_build_row(one, search) for one in planted],
    )
    plot = draw_recall(search.banding, threshold, group_points(similarities, shared))
    return replace(finding, plot=plot)


def _build_row(planted: PlantedPairs, search: DuplicateSearch) -> dict[str, Any]:
    """Return a table row with the results for one kind of edit."""
    probabilities, threshold = (
        search.banding.match_probability(planted.similarities),
        search.similarity,
    )
    is_found = planted.similarities >= threshold
    share = float(planted.shared.mean())
    return {
        "edit": planted.edit,
        "words_%": round(100 * planted.rate, 1),
        "similarity": round(float(planted.similarities.mean()), 3),
        "sharing_band_%": round(100 * share, 1),
        "predicted_%": round(100 * float(probabilities.mean()), 1),
        "removed_%": round(100 * float((planted.shared & is_found).mean()), 1),
        "above_threshold_%": round(100 * float(is_found.mean()), 1),
    }


_REBUILD = "Rebuild the artifact with `dataprep run`"


def _check_rebuild(duplicates: SearchedTexts) -> Finding:
    receipt = duplicates.receipt
    facts, samples = DuplicatesFacts.from_receipt(receipt), choose_sample_count(duplicates.level)
    stored_pairs = read_pairs(duplicates.directory)
    pairs = (
        ComparedPairs()
        if samples is None
        else stored_pairs.remove(draw_documents(receipt.key, len(stored_pairs.pairs), samples))
    )
    total = sum(facts.removed.values())
    return build_verdict(
        (f"{duplicates.artifact}: {defect}" for defect in duplicates.compare(pairs)),
        f"Comparing all {count_of(facts.documents, duplicates.noun)} again drops the same {total:,} of them.",
        _REBUILD,
        facts={f"{duplicates.noun}s": facts.documents, "removed": total, f"equal_{duplicates.noun}s": facts.equal},
    )


def _check_splits_disjoint(duplicates: SearchedTexts) -> Finding:
    noun, directory = duplicates.noun, duplicates.store.local(duplicates.artifact, [ACROSS])
    pairs = [pair for piece in read_joined_tables([directory / ACROSS]) for pair in piece.to_pylist()]
    defects = [
        f"a {noun} of {pair['split']} is a near-duplicate of one in {pair['other']}"
        if duplicates.sensitive
        else f"{pair['row']} in {pair['split']} is {format_share(pair['similarity'])} similar to "
        f"{pair['other_row']} in {pair['other']}"
        for pair in pairs
    ]
    return build_verdict(
        defects,
        f"No kept {noun} is a near-duplicate of a kept {noun} in another split "
        f"({count_of(len(duplicates.splits), 'split')}).",
        "Remove the near-duplicates from one split, or declare `duplicates.across_splits: drop`, which drops them "
        "from the split that is declared first",
        facts={"pairs": len(pairs)},
        table=[] if duplicates.sensitive else pairs[:SHOWN],
    )


_REBUILD_MATCHES = Check(
    "rebuild_matches",
    "Comparing all documents again gives the same duplicates, and the same kept document for each. "
    "Recomputing the overlaps of a sample of pairs (or all pairs) reproduces them.",
    _check_rebuild,
    samples=True,
)
_RECALL = Check(
    "recall_sufficient",
    "Planted near-duplicates are found as often as the MinHash bands predict. The share found at or "
    "above the threshold is at least `duplicates.recall`.",
    check_recall,
)
_DISJOINT = Check(
    "splits_disjoint",
    "No kept document of a split is a near-duplicate of a kept document in another split.",
    _check_splits_disjoint,
)
DUPLICATES_CHECKS: tuple[Check[SearchedTexts], ...] = (FILES_INTACT, _REBUILD_MATCHES, _RECALL, _DISJOINT)
"""All checks. Exact deduplication omits `recall_sufficient`, and a single split omits `splits_disjoint`."""


def list_duplicates_checks(
    search: DuplicateSearch, splits: Sequence[str], level: Level
) -> tuple[Check[SearchedTexts], ...]:
    """Return the checks that apply to a dataset's duplicates."""
    left_out = set()
    if search.across_splits == "ignore" or len(splits) < 2:
        left_out.add(_DISJOINT)
    if search.kind != "near":
        left_out.add(_RECALL)
    return set_level([check for check in DUPLICATES_CHECKS if check not in left_out], level)
