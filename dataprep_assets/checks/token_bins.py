"""Checks of `<dataset>/<split>/token_bins`: one result a check for all shards, with a table of the bad ones.

The shards of the run are examined in parallel; for the others of the split the remembered verdict on their present
content counts. So the latest result is always about the whole split, and a bad shard stays visible until it is mended.
"""

from collections.abc import Iterator

import dagster as dg

from dataprep_assets.assets.corpus import CorpusAssets
from dataprep_assets.assets.dataset import worker_count
from dataprep_assets.builds.engine_certificate import load_certificate, stream_plan
from dataprep_assets.builds.shard_work import shard_works
from dataprep_assets.checks.findings import checks_of, summarized
from dataprep_assets.proofs.finding import Finding
from dataprep_assets.proofs.shards import SHARD_PROOFS, ShardExamination, prove_shards
from dataprep_assets.proofs.verdicts import remembered
from resources import StorageResource


def token_bins_checks(dataset: CorpusAssets, split: str) -> dg.AssetChecksDefinition:
    """All checks of a split's token bins."""
    corpus = dataset.corpus

    def findings(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[tuple[str, Finding]]:
        store, manifest = dataset.store(storage), dataset.manifest(storage)
        plan = stream_plan(corpus, load_certificate(corpus, store))
        examined = dataset.shards_of_run(context.run, manifest, split)
        works = shard_works(corpus, store, manifest, plan, examined)
        examinations = [
            ShardExamination(work=w, text_field=corpus.text_field, sensitive=corpus.sensitive) for w in works
        ]
        found = dict(prove_shards(examinations, worker_count(corpus.workers)))
        unknown = 0
        for partition in manifest.partitions(split):
            if partition not in found:
                kept = remembered(corpus.artifact("token_bins", partition), store)
                unknown += kept is None
                found |= {partition: kept} if kept else {}
        for name in SHARD_PROOFS:
            yield name, summarized({p: found[p][name] for p in sorted(found)}, examined, unknown)

    return checks_of(dataset.key("token_bins", split), SHARD_PROOFS, findings)
