"""The products of a dataset: what it is made for."""

from collections.abc import Sequence

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.card.card import DATA_CARD


def products(specs: Sequence[ArtifactSpec]) -> list[ArtifactSpec]:
    """The artifacts that are an input of no other artifact of the dataset except its data card."""
    used = {source for spec in specs if spec.name != DATA_CARD for source in spec.inputs}
    return [spec for spec in specs if spec not in used and spec.name != DATA_CARD]
