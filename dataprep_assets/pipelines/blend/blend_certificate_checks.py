"""Checks of `<dataset>/engine_certificate` of a blend, whose separator matters only where one is written."""

from collections.abc import Iterator

import dagster as dg

from dataprep_assets.graph.finding import Finding
from dataprep_assets.orchestration.checks import checks_of
from dataprep_assets.pipelines.blend.blend_plan_asset import BlendAssets
from dataprep_assets.pipelines.blend.stream import load_blend_certificate
from dataprep_assets.pipelines.corpus import engine_certificate_proofs as proofs
from dataprep_assets.pipelines.corpus.declaration import DocumentPolicy
from dataprep_assets.pipelines.corpus.engine_certificate import load_bundle
from dataprep_assets.pipelines.corpus.engine_certificate_checks import CHECKS, engine_certificate_checks
from resources import StorageResource


def blend_certificate_checks(dataset: BlendAssets) -> dg.AssetChecksDefinition:
    """The checks of every certificate; without that of the separator where documents end with none."""
    blend = dataset.blend
    tokenizer, options = blend.required_tokenizer, blend.pretrain_options
    if blend.stage == "pretrain" and options.add_eos:
        document = DocumentPolicy(separator=options.separator, special_tokens=options.special_tokens)
        return engine_certificate_checks(dataset, tokenizer, document, lambda s: load_blend_certificate(blend, s))

    def findings(_: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[tuple[str, Finding]]:
        bundle, certificate = load_bundle(tokenizer), load_blend_certificate(blend, dataset.store(storage))
        yield "certificate_holds", proofs.certificate_holds(certificate, bundle, options.special_tokens)
        yield "fast_engine_accepted", proofs.fast_engine_accepted(certificate)

    descriptions = {name: CHECKS[name] for name in ("certificate_holds", "fast_engine_accepted")}
    return checks_of(dataset.key("engine_certificate"), descriptions, findings, reports=("fast_engine_accepted",))
