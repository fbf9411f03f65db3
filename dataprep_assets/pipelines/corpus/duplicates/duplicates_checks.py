"""Checks of a dataset's duplicates: a rebuild matches, planted duplicates are found, and splits are disjoint."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from dataprep_assets.curation.duplicates.kept_set import ComparedPairs
from dataprep_assets.curation.duplicates.planted import PlantedPairs, plant_pairs
from dataprep_assets.curation.table import read_joined_tables
from dataprep_assets.engine.checks.check import (
    FILES_INTACT,
    SHOWN,
    Check,
    Finding,
    OpenedArtifact,
    build_verdict,
    choose_sample_count,
    draw_documents,
    set_level,
)
from dataprep_assets.engine.checks.verdicts import WholeArtifactChecks
from dataprep_assets.errors import count_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.curation.kept_documents import read_pairs
from dataprep_assets.pipelines.corpus.curation.tagged_shard import read_part_batches
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.duplicates.duplicates import ACROSS, DuplicatesFacts, compare_rebuilt_duplicates
from dataprep_assets.pipelines.corpus.duplicates.recall_plot import draw_recall, group_points
from dataprep_assets.pipelines.corpus.duplicates.removed_duplicates import DUPLICATES
from dataprep_assets.pipelines.corpus.duplicates.signatures import plan_signature_shards
from dataprep_assets.pipelines.corpus.source.manifest import load_manifest
from dataprep_assets.pipelines.corpus.source.snapshot import refetch_shards
from dataprep_assets.table import format_share

_SAMPLED_SHARDS, _SAMPLED_TEXTS, _MIN_WORDS = 4, 24, 20
"""Number of sampled shards, of sampled texts per shard, and minimum words per text, for enough shingles."""
_SLACK, _DEVIATIONS, _FLOOR_MARGIN = 0.01, 4.0, 0.05
"""Tolerance for chance, as a share of all pairs and in standard deviations; distance of the default floor below the
predicted recall."""


@dataclass(frozen=True)
class OpenedDuplicates(OpenedArtifact):
    """Duplicates of a dataset, opened for checks."""

    corpus: CorpusDeclaration


def check_recall(duplicates: OpenedDuplicates) -> Finding:
    """Check that near-duplicates planted in sampled texts are found as often as the bands predict."""
    corpus = duplicates.corpus
    assert corpus.duplicates is not None
    texts = _draw_sample(corpus, duplicates.store)
    if not texts:
        return Finding(
            passed=True, summary=f"No text in the sample has {_MIN_WORDS} words, so nothing could be planted."
        )
    planted = plant_pairs(texts, corpus.signing, duplicates.seed)
    similarities = np.concatenate([one.similarities for one in planted])
    shared = np.concatenate([one.shared for one in planted])
    probabilities = corpus.duplicates.banding.match_probability(similarities)
    threshold = corpus.duplicates.similarity
    is_above = similarities >= threshold
    share, predicted = float(shared.mean()), float(probabilities.mean())
    # Each pair is found independently with its own probability p, so the variance of the number of found pairs is the
    # sum of p (1 - p).
    deviation = float(np.sqrt((probabilities * (1 - probabilities)).sum())) / len(similarities)
    # Use a recall of 1 if no planted pair reaches the threshold, because there is no pair to miss.
    recall = float(shared[is_above].mean()) if is_above.any() else 1.0
    predicted_above = float(probabilities[is_above].mean()) if is_above.any() else 1.0
    floor = corpus.duplicates.recall if corpus.duplicates.recall is not None else predicted_above - _FLOOR_MARGIN
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
        table=[_build_row(one, corpus) for one in planted],
    )
    plot = draw_recall(corpus.duplicates.banding, threshold, group_points(similarities, shared))
    return replace(finding, plot=plot)


def _build_row(planted: PlantedPairs, corpus: CorpusDeclaration) -> dict[str, Any]:
    """Return a table row with the results for one kind of edit."""
    assert corpus.duplicates is not None
    probabilities, threshold = (
        corpus.duplicates.banding.match_probability(planted.similarities),
        corpus.duplicates.similarity,
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


def _draw_sample(corpus: CorpusDeclaration, store: ArtifactStore) -> Sequence[str]:
    manifest = load_manifest(corpus, store)
    keys = list(manifest.plan)
    partitions = keys[:: max(1, len(keys) // _SAMPLED_SHARDS)][:_SAMPLED_SHARDS]
    refetch_shards(corpus, manifest, partitions)
    texts: list[str] = []
    for shard in plan_signature_shards(corpus, store, manifest, partitions):
        long = (
            text
            for part in shard.files
            for batch in islice(read_part_batches(part, shard.fields), 1)
            for text in batch.texts
            if len(text.split()) >= _MIN_WORDS
        )
        texts += [text[:20_000] for text in islice(long, _SAMPLED_TEXTS)]
    return texts


_REBUILD = "Rebuild the artifact with `dataprep run`"


def _check_rebuild(duplicates: OpenedDuplicates) -> Finding:
    corpus, receipt = duplicates.corpus, duplicates.receipt
    facts, samples = DuplicatesFacts.from_receipt(receipt), choose_sample_count(corpus.prove.level)
    stored_pairs = read_pairs(duplicates.directory)
    pairs = (
        ComparedPairs()
        if samples is None
        else stored_pairs.remove(draw_documents(receipt.key, len(stored_pairs.pairs), samples))
    )
    defects = compare_rebuilt_duplicates(corpus, duplicates.store, receipt, duplicates.directory, pairs)
    total = sum(facts.removed.values())
    return build_verdict(
        (f"{corpus.artifact(DUPLICATES)}: {defect}" for defect in defects),
        f"Comparing all {count_of(facts.documents, 'document')} again drops the same {total:,} of them.",
        _REBUILD,
        facts={"documents": facts.documents, "removed": total, "equal_documents": facts.equal},
    )


def _check_splits_disjoint(duplicates: OpenedDuplicates) -> Finding:
    corpus, directory = duplicates.corpus, duplicates.store.local(duplicates.artifact, [ACROSS])
    pairs = [pair for piece in read_joined_tables([directory / ACROSS]) for pair in piece.to_pylist()]
    defects = [
        f"a document of {pair['split']} is a near-duplicate of one in {pair['other']}"
        if corpus.sensitive
        else f"{pair['row']} in {pair['split']} is {format_share(pair['similarity'])} similar to "
        f"{pair['other_row']} in {pair['other']}"
        for pair in pairs
    ]
    return build_verdict(
        defects,
        "No kept document is a near-duplicate of a kept document in another split "
        f"({count_of(len(corpus.splits), 'split')}).",
        "Remove the near-duplicates from one split, or declare `duplicates.across_splits: drop`, which drops them "
        "from the split that is declared first",
        facts={"pairs": len(pairs)},
        table=[] if corpus.sensitive else pairs[:SHOWN],
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
DUPLICATES_CHECKS: tuple[Check[OpenedDuplicates], ...] = (FILES_INTACT, _REBUILD_MATCHES, _RECALL, _DISJOINT)
"""All checks. Exact deduplication omits `recall_sufficient`, and a single split omits `splits_disjoint`."""


def build_duplicates_checks(corpus: CorpusDeclaration) -> WholeArtifactChecks[OpenedDuplicates]:
    """Return the checks that apply to a dataset's duplicates."""
    assert corpus.duplicates is not None
    left_out = set()
    if corpus.duplicates.across_splits == "ignore" or len(corpus.splits) < 2:
        left_out.add(_DISJOINT)
    if corpus.duplicates.kind != "near":
        left_out.add(_RECALL)
    return WholeArtifactChecks(
        checks=set_level([check for check in DUPLICATES_CHECKS if check not in left_out], corpus.prove.level),
        open=lambda store, _: OpenedDuplicates(corpus.artifact(DUPLICATES), store, corpus).with_local_files(),
    )
