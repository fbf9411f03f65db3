"""Checks of `<dataset>/engine_certificate`: it holds for what is installed, and refuses nothing unsaid."""

from collections.abc import Iterator

import dagster as dg

from dataprep_assets.assets.dataset import DatasetAssets
from dataprep_assets.builds.engine_certificate import load_bundle, load_certificate
from dataprep_assets.checks.findings import check_result
from dataprep_assets.proofs import engine_certificate as proofs
from resources import StorageResource


def engine_certificate_checks(dataset: DatasetAssets) -> dg.AssetChecksDefinition:
    """All checks of the certificate and of the separator that the declaration chose."""
    key, corpus = dataset.key("engine_certificate"), dataset.corpus
    specs = [
        dg.AssetCheckSpec("certificate_holds", asset=key, description="Tokenizer, mode and library versions are the certified ones.", blocking=True),
        dg.AssetCheckSpec("fast_engine_accepted", asset=key, description="No class of documents has to go to the slow reference engine."),
        dg.AssetCheckSpec("separator_ends_documents", asset=key, description="The separator is not a token that ends a chat turn."),
    ]  # fmt: skip

    @dg.multi_asset_check(name=f"{corpus.dataset}_engine_certificate_checks", specs=specs)
    def checks(storage: StorageResource) -> Iterator[dg.AssetCheckResult]:
        bundle, certificate = load_bundle(corpus.tokenizer), load_certificate(corpus, dataset.root(storage))
        mode = corpus.document.special_tokens
        yield check_result(key, "certificate_holds", proofs.certificate_holds(certificate, bundle, mode))
        yield check_result(key, "fast_engine_accepted", proofs.fast_engine_accepted(certificate))
        separator = bundle.separator(corpus.document.separator)
        yield check_result(key, "separator_ends_documents", proofs.separator_ends_documents(separator, bundle))

    return checks
