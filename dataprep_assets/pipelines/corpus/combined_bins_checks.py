"""Checks of `<dataset>/<split>/combined_bins`: the file a trainer eats, against its shards, its sources and its use."""

from collections.abc import Iterator

import dagster as dg

from dataprep_assets.formats import document_ends
from dataprep_assets.graph.finding import Finding, judged
from dataprep_assets.orchestration.checks import checks_of
from dataprep_assets.pipelines.corpus import combined_bins_proofs as proofs
from dataprep_assets.pipelines.corpus.combined_bins import shard_receipts
from dataprep_assets.pipelines.corpus.corpus_asset import CorpusAssets
from dataprep_assets.pipelines.corpus.engine_certificate import load_bundle
from dataprep_assets.pipelines.corpus.snapshot_proofs import disk_headroom
from dataprep_assets.pipelines.corpus.token_bins import ENDS
from dataprep_assets.pipelines.corpus.token_bins_proofs import eye_test
from resources import StorageResource

CHECKS = {
    "equals_shards": "The file is its shards, in manifest order: digests of every range and of the whole.",
    "totals_match": "Its ledger is the sum of its shards' ledgers.",
    "sources_complete": "Every file of the split exactly once, and none of another split.",
    "meta_matches": "meta.pkl says what the tokenizer and the bytes say, and equals meta.json.",
    "alignment": "Inputs and labels read apart are shifted by one, and document ends fall on separators.",
    "sampler_dry_run": "Random batches load; a uniform model's loss is ln(vocab) and a unigram model's is below it.",
    "eye_test": "Decoded windows near the start and deep in look like text.",
    "shuffle_quality": "How long runs of one source file are, in documents and tokens.",
    "source_boundaries": "Each source file's documents end where the ledger says they do.",
    "disk_headroom": "Twenty percent of the file's size is free on its disk.",
}


def combined_bins_checks(dataset: CorpusAssets, split: str) -> dg.AssetChecksDefinition:
    """All checks of a split's combined bins."""

    def findings(_: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[tuple[str, Finding]]:
        return _findings(dataset, split, storage)

    return checks_of(
        dataset.key("combined_bins", split), CHECKS, findings, reports=("shuffle_quality", "disk_headroom")
    )


def _findings(dataset: CorpusAssets, split: str, storage: StorageResource) -> Iterator[tuple[str, Finding]]:
    corpus, store, manifest = dataset.corpus, dataset.store(storage), dataset.manifest(storage)
    artifact = corpus.artifact("combined_bins", split)
    receipt, directory, bundle = store.require(artifact), store.local(artifact), load_bundle(corpus.tokenizer)
    shards = [(store.local(a, [ENDS]), r) for a, r in shard_receipts(corpus, store, manifest, split)]
    receipts = [r for _, r in shards]
    separator = bundle.separator(corpus.document.separator).id
    tokens, dtype, seed = directory / f"{split}.bin", str(receipt.facts["dtype"]), int(receipt.key[:8], 16)
    literal = receipt.ledger.literal_separators if receipt.ledger else 0

    @judged
    def alignment() -> Finding:
        return proofs.alignment(
            tokens,
            dtype,
            document_ends.open_ends(directory / ENDS),
            separator_id=separator,
            vocab_size=bundle.vocab_size,
            seed=seed,
            bos_id=receipt.facts["bos_id"],
            literal_separators=literal,
        )

    @judged
    def source_boundaries() -> Finding:
        return proofs.source_run_length(
            document_ends.open_ends(directory / ENDS), [line for r in receipts for line in r.sources]
        )

    yield "equals_shards", proofs.equals_shards(directory, receipt, shards, split=split)
    yield "totals_match", proofs.wrong_totals(receipt, shards)
    yield "sources_complete", proofs.sources_complete(receipts, manifest.entries, split)
    yield "meta_matches", proofs.meta_matches(directory, bundle, separator, dtype)
    yield "alignment", alignment()
    yield "sampler_dry_run", proofs.sampler_dry_run(tokens, dtype, bundle.vocab_size, seed=seed)
    yield "eye_test", eye_test(tokens, directory / ENDS, dtype, bundle, seed=seed, sensitive=corpus.sensitive)
    yield "shuffle_quality", proofs.shuffle_quality(receipts)
    yield "source_boundaries", source_boundaries()
    yield "disk_headroom", disk_headroom(directory, receipt.total_bytes // 5, 0.0)
