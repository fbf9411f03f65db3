"""Checks of `<dataset>/engine_certificate`: it holds for what is installed, and refuses nothing unsaid."""

from collections.abc import Callable, Iterator

import dagster as dg

from dataprep_assets.graph.finding import Finding
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.checks import checks_of
from dataprep_assets.orchestration.dataset import DatasetAssets
from dataprep_assets.pipelines.corpus import engine_certificate_proofs as proofs
from dataprep_assets.pipelines.corpus.declaration import DocumentPolicy, TokenizerDeclaration
from dataprep_assets.pipelines.corpus.engine_certificate import load_bundle
from dataprep_assets.tokenization.certificate import Certificate
from resources import StorageResource

CHECKS = {
    "certificate_holds": "Tokenizer, mode and library versions are the certified ones.",
    "fast_engine_accepted": "No class of documents has to go to the slow reference engine.",
    "separator_ends_documents": "The separator is not a token that ends a chat turn.",
}


def engine_certificate_checks(
    dataset: DatasetAssets,
    tokenizer: TokenizerDeclaration,
    document: DocumentPolicy,
    load: Callable[[ArtifactStore], Certificate],
) -> dg.AssetChecksDefinition:
    """All checks of the certificate and of the separator that the declaration chose."""

    def findings(_: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[tuple[str, Finding]]:
        bundle, certificate = load_bundle(tokenizer), load(dataset.store(storage))
        yield "certificate_holds", proofs.certificate_holds(certificate, bundle, document.special_tokens)
        yield "fast_engine_accepted", proofs.fast_engine_accepted(certificate)
        separator = bundle.separator(document.separator)
        yield "separator_ends_documents", proofs.separator_ends_documents(separator, bundle)

    reports = ("fast_engine_accepted", "separator_ends_documents")
    return checks_of(dataset.key("engine_certificate"), CHECKS, findings, reports=reports)
