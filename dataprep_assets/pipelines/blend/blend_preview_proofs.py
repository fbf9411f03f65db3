"""Proofs on the preview of a blend: every dataset with a weight is at least one training sample."""

from dataclasses import asdict

from dataprep_assets.graph.finding import Finding, Row, judged, verdict
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.blend_preview import BlendPreviewFacts, SourcePreview

__all__ = ["nothing_rounds_to_zero"]


@judged
def nothing_rounds_to_zero(preview: Receipt) -> Finding:
    """Every dataset with a weight has data, and its share of the training is at least one sample."""
    sources = BlendPreviewFacts.of(preview).sources
    zero = [source for source in sources if source.rounds_to_zero]
    return verdict(
        (
            f"{source.name}: a share of {source.requested:.6f} is {source.samples} samples of {source.tokens} tokens"
            for source in zero
        ),
        f"Each of {len(sources)} datasets is at least one sample.",
        "Raise its weight, or `train_tokens`, or set its weight to 0",
        facts={"datasets": len(sources), "rounded_to_zero": len(zero)},
        table=[_shown(source) for source in sources],
    )


def _shown(source: SourcePreview) -> Row:
    names = ("split", "name", "rows", "tokens", "requested", "realisable", "epochs", "samples", "shards")
    row = asdict(source)
    return {name: row[name] for name in names}
