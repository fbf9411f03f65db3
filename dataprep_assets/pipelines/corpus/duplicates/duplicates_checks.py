"""Checks of a dataset's duplicates: they can be rebuilt, planted ones are found, and splits are disjoint."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from dataprep_assets.curation.duplicates.kept_set import ComparedPairs
from dataprep_assets.curation.duplicates.planted import Planted, plant
from dataprep_assets.curation.table import read_joined
from dataprep_assets.engine.checks.check import (
    FILES_INTACT,
    SHOWN,
    Check,
    Finding,
    OpenedArtifact,
    at_level,
    draw_documents,
    samples_of,
    verdict,
)
from dataprep_assets.engine.checks.verdicts import WholeChecks
from dataprep_assets.errors import count_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.curation.kept_documents import pairs_in
from dataprep_assets.pipelines.corpus.curation.tagged_shard import batches_of
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.duplicates.duplicates import ACROSS, DuplicatesFacts, rebuilt_duplicates
from dataprep_assets.pipelines.corpus.duplicates.recall_plot import draw_recall, points_of
from dataprep_assets.pipelines.corpus.duplicates.removed_duplicates import DUPLICATES
from dataprep_assets.pipelines.corpus.duplicates.signatures import signature_shards
from dataprep_assets.pipelines.corpus.source.manifest import load_manifest
from dataprep_assets.pipelines.corpus.source.snapshot import fetch_again

_SHARDS, _TEXTS, _WORDS = 4, 24, 20
"""Number of shards to sample, of texts per shard, and minimum words of a text; a shorter text has few shingles."""
_SLACK, _DEVIATIONS, _BELOW = 0.01, 4.0, 0.05
"""Tolerance for chance, as a share of all pairs and in standard deviations; distance of the default floor below the
predicted recall."""


@dataclass(frozen=True)
class OpenedDuplicates(OpenedArtifact):
    """The duplicates of a dataset, opened for checks."""

    corpus: CorpusDeclaration


def recall_sufficient(opened: OpenedDuplicates) -> Finding:
    """Check that near-duplicates planted in sampled texts are found as often as the bands predict."""
    corpus = opened.corpus
    assert corpus.duplicates is not None
    texts = _sample(corpus, opened.store)
    if not texts:
        return Finding(passed=True, summary=f"No text in the sample has {_WORDS} words, so nothing could be planted.")
    planted = plant(texts, corpus.signing, opened.seed)
    alike = np.concatenate([one.similarities for one in planted])
    shared = np.concatenate([one.shared for one in planted])
    chance = corpus.duplicates.banding.match_probability(alike)
    above_from = corpus.duplicates.similarity
    above = alike >= above_from
    share, promised = float(shared.mean()), float(chance.mean())
    # each pair is found with its own probability p, so the variance of the sum is the sum of p (1 - p)
    deviation = float(np.sqrt((chance * (1 - chance)).sum())) / len(alike)
    # no planted pair is similar enough, so none was missed
    recall = float(shared[above].mean()) if above.any() else 1.0
    promised_above = float(chance[above].mean()) if above.any() else 1.0
    floor = corpus.duplicates.recall if corpus.duplicates.recall is not None else promised_above - _BELOW
    defects = []
    if recall < floor:
        defects.append(
            f"{recall:.2%} of the planted near-duplicates at or above the threshold are found, but {floor:.2%} are "
            "required"
        )
    if share < promised - _SLACK - _DEVIATIONS * deviation:
        defects.append(f"{share:.2%} of all planted pairs share a band, but {promised:.2%} are expected")
    finding = verdict(
        defects,
        f"{recall:.2%} of {int(above.sum()):,} planted near-duplicates at or above the threshold are found; the "
        f"bands predict {promised_above:.2%}. None below it is dropped.",
        "Raise `duplicates.permutations`, or lower `duplicates.recall`",
        facts={
            "planted": len(alike),
            "recall_%": round(100 * recall, 3),
            "promised_%": round(100 * promised_above, 3),
            "share_a_band_%": round(100 * share, 3),
            "should_%": round(100 * promised, 3),
        },
        table=[_row(one, corpus) for one in planted],
    )
    plot = draw_recall(corpus.duplicates.banding, above_from, points_of(alike, shared))
    return replace(finding, plot=plot)


def _row(one: Planted, corpus: CorpusDeclaration) -> dict[str, Any]:
    """Return a table row with the results for one kind of edit."""
    assert corpus.duplicates is not None
    chance, above = corpus.duplicates.banding.match_probability(one.similarities), corpus.duplicates.similarity
    alike = one.similarities >= above
    share = float(one.shared.mean())
    return {
        "edit": one.edit,
        "words_%": round(100 * one.rate, 1),
        "similarity": round(float(one.similarities.mean()), 3),
        "share_a_band_%": round(100 * share, 1),
        "promised_%": round(100 * float(chance.mean()), 1),
        "removed_%": round(100 * float((one.shared & alike).mean()), 1),
        "above_threshold_%": round(100 * float(alike.mean()), 1),
    }


def _sample(corpus: CorpusDeclaration, store: ArtifactStore) -> Sequence[str]:
    manifest = load_manifest(corpus, store)
    keys = list(manifest.plan)
    partitions = keys[:: max(1, len(keys) // _SHARDS)][:_SHARDS]
    fetch_again(corpus, manifest, partitions)
    texts: list[str] = []
    for shard in signature_shards(corpus, store, manifest, partitions):
        long = (
            text
            for part in shard.files
            for batch in islice(batches_of(part, shard.fields), 1)
            for text in batch.texts
            if len(text.split()) >= _WORDS
        )
        texts += [text[:20_000] for text in islice(long, _TEXTS)]
    return texts


_REBUILD = "Delete the artifact's directory and materialize it again"


def _rebuild_matches(opened: OpenedDuplicates) -> Finding:
    corpus, receipt = opened.corpus, opened.receipt
    facts, samples = DuplicatesFacts.of(receipt), samples_of(corpus.prove.level)
    stored_pairs = pairs_in(opened.directory)
    pairs = (
        ComparedPairs()
        if samples is None
        else stored_pairs.remove(draw_documents(receipt.key, len(stored_pairs.pairs), samples))
    )
    defects = rebuilt_duplicates(corpus, opened.store, receipt, opened.directory, pairs)
    total = sum(facts.removed.values())
    return verdict(
        (f"{corpus.artifact(DUPLICATES)}: {defect}" for defect in defects),
        f"{count_of(total, 'document')} of {facts.documents:,} are dropped, the same as when compared again.",
        _REBUILD,
        facts={"documents": facts.documents, "removed": total, "equal": facts.equal},
    )


def _splits_disjoint(opened: OpenedDuplicates) -> Finding:
    corpus, directory = opened.corpus, opened.store.local(opened.artifact, [ACROSS])
    pairs = [pair for piece in read_joined([directory / ACROSS]) for pair in piece.to_pylist()]
    defects = [
        f"a document of {pair['split']} is a near-duplicate of one in {pair['other']}"
        if corpus.sensitive
        else f"{pair['row']} of {pair['split']} is {pair['similarity']:.1%} similar to {pair['other_row']} of "
        f"{pair['other']}"
        for pair in pairs
    ]
    return verdict(
        defects,
        f"No kept document in one of {count_of(len(corpus.splits), 'split')} is a near-duplicate of one in another.",
        "Remove them from a split, or declare `duplicates.across_splits: drop`, which drops them from the split "
        "that is declared first",
        facts={"pairs": len(pairs)},
        table=[] if corpus.sensitive else pairs[:SHOWN],
    )


_REBUILT = Check(
    "rebuild_matches",
    "Comparing all documents again reproduces the stored duplicates and the document kept for each. The overlap of "
    "a sample of stored pairs (or all) is recomputed.",
    _rebuild_matches,
    samples=True,
)
_RECALL = Check(
    "recall_sufficient",
    "Planted near-duplicates are found at the rate the MinHash bands predict and, at or above the threshold, at the "
    "rate set by `duplicates.recall`.",
    recall_sufficient,
)
_DISJOINT = Check(
    "splits_disjoint",
    "No kept document of a split is a near-duplicate of a kept document in another split.",
    _splits_disjoint,
)
DUPLICATES_CHECKS: tuple[Check[OpenedDuplicates], ...] = (FILES_INTACT, _REBUILT, _RECALL, _DISJOINT)
"""All checks. Exact deduplication has no planted duplicates, and a single split has no other split to compare."""


def duplicates_checks(corpus: CorpusDeclaration) -> WholeChecks[OpenedDuplicates]:
    """Return the checks of a dataset's duplicates."""
    assert corpus.duplicates is not None
    left_out = set()
    if corpus.duplicates.across_splits == "ignore" or len(corpus.splits) < 2:
        left_out.add(_DISJOINT)
    if corpus.duplicates.kind != "near":
        left_out.add(_RECALL)
    return WholeChecks(
        checks=at_level([check for check in DUPLICATES_CHECKS if check not in left_out], corpus.prove.level),
        open=lambda store, _: OpenedDuplicates(corpus.artifact(DUPLICATES), store, corpus).with_files(),
    )
