"""The asset `<dataset>/engine_certificate`: the proof under which a fast tokenizer engine may be used."""

from collections.abc import Callable, Sequence
from typing import Any

import dagster as dg

from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.orchestration.dataset import DatasetAssets, result, table
from dataprep_assets.tokenization.certificate import Certificate
from resources import StorageResource


def engine_certificate_asset(
    dataset: DatasetAssets,
    build: Callable[[ArtifactStore], tuple[Receipt, bool]],
    load: Callable[[ArtifactStore], Certificate],
    deps: Sequence[dg.AssetKey] = (),
) -> dg.AssetsDefinition:
    """Compare the fast engine with the reference on a sample of this dataset and on adversarial documents."""

    @dg.asset(
        key=dataset.key("engine_certificate"),
        deps=list(deps),
        **dataset.common({"json", "huggingface"}, "Whether the fast engine gives the reference's ids on this dataset."),
    )
    def engine_certificate(context: dg.AssetExecutionContext, storage: StorageResource) -> dg.MaterializeResult[Any]:
        store = dataset.store(storage)
        receipt, reused = build(store)
        certificate = load(store)
        rows = [
            {"origin": origin, "class": kind, "documents": count, "goes to": where}
            for name, count in certificate.compared.items()
            for origin, _, kind in [name.partition(":")]
            for where in ["tokenizers" if kind in certificate.refused else certificate.engine]
        ]
        extra: dict[str, Any] = {
            "engine": certificate.engine,
            "engine_version": certificate.engine_version,
            "reference_version": certificate.reference_version,
            "refused_classes": ", ".join(certificate.refused) or "none",
        }
        if rows:
            extra["compared"] = table(rows)
        if certificate.reason:
            extra["reason"] = certificate.reason
            context.log.warning(certificate.reason)
        return result(receipt, store.location(dataset.declaration.artifact("engine_certificate")), reused, extra)

    return engine_certificate
