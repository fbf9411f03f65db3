"""The asset `<dataset>/engine_certificate`: the proof under which a fast tokenizer engine may be used."""

from typing import Any

import dagster as dg

from dataprep_assets.assets.corpus import CorpusAssets
from dataprep_assets.assets.dataset import result
from dataprep_assets.builds.engine_certificate import build_engine_certificate, load_certificate
from resources import StorageResource


def engine_certificate_asset(dataset: CorpusAssets) -> dg.AssetsDefinition:
    """Compare the fast engine with the reference on a sample of this corpus and on adversarial documents."""

    @dg.asset(
        key=dataset.key("engine_certificate"),
        deps=[dataset.key("manifest")],
        **dataset.common({"json", "huggingface"}, "Whether the fast engine gives the reference's ids on this corpus."),
    )
    def engine_certificate(context: dg.AssetExecutionContext, storage: StorageResource) -> dg.MaterializeResult[Any]:
        store = dataset.store(storage)
        receipt, reused = build_engine_certificate(dataset.corpus, store, dataset.manifest(storage))
        certificate = load_certificate(dataset.corpus, store)
        rows = [
            dg.TableRecord({"origin": origin, "class": kind, "documents": count, "goes to": where})
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
            extra["compared"] = dg.MetadataValue.table(rows)
        if certificate.reason:
            extra["reason"] = certificate.reason
            context.log.warning(certificate.reason)
        return result(receipt, store.place(dataset.corpus.artifact("engine_certificate")), reused, extra)

    return engine_certificate
