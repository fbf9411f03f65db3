"""The duplicates of a corpus, opened for the checks of `curation.duplicates.duplicates_checks`."""

from collections.abc import Iterator
from functools import partial
from itertools import islice

from dataprep_assets.curation.duplicates.duplicates_checks import (
    MIN_WORDS,
    SAMPLED_SHARDS,
    SAMPLED_TEXTS,
    SearchedTexts,
    list_duplicates_checks,
)
from dataprep_assets.curation.duplicates.removed_file import DUPLICATES
from dataprep_assets.engine.checks.verdicts import WholeArtifactChecks
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.curation.tagged_shard import read_part_batches
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.duplicates.duplicates import compare_rebuilt_duplicates
from dataprep_assets.pipelines.corpus.duplicates.signatures import plan_signature_shards
from dataprep_assets.pipelines.corpus.source.manifest import load_manifest
from dataprep_assets.pipelines.corpus.source.snapshot import refetch_shards


def build_duplicates_checks(corpus: CorpusDeclaration) -> WholeArtifactChecks[SearchedTexts]:
    """Return the checks that apply to a dataset's duplicates."""
    assert corpus.duplicates is not None
    return WholeArtifactChecks(
        checks=list_duplicates_checks(corpus.duplicates, list(corpus.splits), corpus.prove.level),
        open=lambda store, _: open_duplicates(corpus, store).with_local_files(),
    )


def open_duplicates(corpus: CorpusDeclaration, store: ArtifactStore) -> SearchedTexts:
    """Return a dataset's duplicates, opened for checks."""
    assert corpus.duplicates is not None
    return SearchedTexts(
        corpus.artifact(DUPLICATES),
        store,
        search=corpus.duplicates,
        signing=corpus.signing,
        splits=list(corpus.splits),
        level=corpus.prove.level,
        sensitive=corpus.sensitive,
        noun="document",
        sample=partial(_draw_sample, corpus, store),
        compare=partial(compare_rebuilt_duplicates, corpus, store),
    )


def _draw_sample(corpus: CorpusDeclaration, store: ArtifactStore) -> Iterator[str]:
    manifest = load_manifest(corpus, store)
    keys = list(manifest.plan)
    partitions = keys[:: max(1, len(keys) // SAMPLED_SHARDS)][:SAMPLED_SHARDS]
    refetch_shards(corpus, manifest, partitions)
    for shard in plan_signature_shards(corpus, store, manifest, partitions):
        long = (
            text
            for part in shard.files
            for batch in islice(read_part_batches(part, shard.fields), 1)
            for text in batch.texts
            if len(text.split()) >= MIN_WORDS
        )
        yield from islice(long, SAMPLED_TEXTS)
