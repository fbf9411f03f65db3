"""Checks of `<dataset>/<split>/token_bins`: one result a check for all shards, with a table of the bad ones."""

from collections.abc import Iterator, Sequence
from functools import partial

import dagster as dg

from dataprep_assets.graph.finding import Finding
from dataprep_assets.graph.verdicts import Verdicts, prove_all
from dataprep_assets.orchestration.checks import checks_of, of_all_partitions
from dataprep_assets.orchestration.dataset import worker_count
from dataprep_assets.pipelines.corpus.corpus_asset import CorpusAssets
from dataprep_assets.pipelines.corpus.engine_certificate import load_certificate, stream_plan
from dataprep_assets.pipelines.corpus.shard_proofs import SHARD_PROOFS, prove_shard
from dataprep_assets.pipelines.corpus.shard_work import shard_works
from resources import StorageResource


def token_bins_checks(dataset: CorpusAssets, split: str) -> dg.AssetChecksDefinition:
    """All checks of a split's token bins."""
    corpus = dataset.corpus

    def findings(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[tuple[str, Finding]]:
        store, manifest = dataset.store(storage), dataset.manifest(storage)
        plan = stream_plan(corpus, load_certificate(corpus, store))

        def prove(partitions: Sequence[str]) -> Verdicts:
            works = shard_works(corpus, store, manifest, plan, partitions)
            return prove_all(works, partial(prove_shard, sensitive=corpus.sensitive), worker_count(corpus.workers))

        yield from of_all_partitions(
            context.run,
            store,
            manifest.partitions(split),
            SHARD_PROOFS,
            artifact=lambda partition: corpus.artifact("token_bins", partition),
            prove=prove,
        )

    return checks_of(dataset.key("token_bins", split), SHARD_PROOFS, findings)
