"""The products of a dataset: the artifacts that trainers read."""

from collections.abc import Sequence

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.card.card import DATA_CARD


def find_products(specs: Sequence[ArtifactSpec]) -> list[ArtifactSpec]:
    """Return the artifacts that are not an input of other artifacts of the dataset, ignoring its data card."""
    used_sources = {source for spec in specs if spec.name != DATA_CARD for source in spec.inputs}
    return [spec for spec in specs if spec not in used_sources and spec.name != DATA_CARD]
