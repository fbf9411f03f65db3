"""Checks of `<dataset>/engine_certificate`: it holds for what is installed, and refuses nothing unsaid."""

from collections.abc import Iterator

import dagster as dg

from dataprep_assets.assets.corpus import CorpusAssets
from dataprep_assets.builds.engine_certificate import load_bundle, load_certificate
from dataprep_assets.checks.findings import checks_of
from dataprep_assets.proofs import engine_certificate as proofs
from dataprep_assets.proofs.finding import Finding
from resources import StorageResource

CHECKS = {
    "certificate_holds": "Tokenizer, mode and library versions are the certified ones.",
    "fast_engine_accepted": "No class of documents has to go to the slow reference engine.",
    "separator_ends_documents": "The separator is not a token that ends a chat turn.",
}


def engine_certificate_checks(dataset: CorpusAssets) -> dg.AssetChecksDefinition:
    """All checks of the certificate and of the separator that the declaration chose."""
    corpus = dataset.corpus

    def findings(_: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[tuple[str, Finding]]:
        bundle, certificate = load_bundle(corpus.tokenizer), load_certificate(corpus, dataset.store(storage))
        yield "certificate_holds", proofs.certificate_holds(certificate, bundle, corpus.document.special_tokens)
        yield "fast_engine_accepted", proofs.fast_engine_accepted(certificate)
        separator = bundle.separator(corpus.document.separator)
        yield "separator_ends_documents", proofs.separator_ends_documents(separator, bundle)

    reports = ("fast_engine_accepted", "separator_ends_documents")
    return checks_of(dataset.key("engine_certificate"), CHECKS, findings, reports=reports)
