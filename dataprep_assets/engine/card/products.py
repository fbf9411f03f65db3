"""The products of a dataset: the artifacts that trainers read."""

from collections.abc import Sequence

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.card.card import DATA_CARD
from dataprep_assets.engine.card.contents import PUBLISHED

_FINAL_NAMES = (DATA_CARD, PUBLISHED)


def find_products(specs: Sequence[ArtifactSpec]) -> list[ArtifactSpec]:
    """Return the artifacts that are not an input of others of the dataset, ignoring its card and its publication."""
    used_sources = {source for spec in specs if spec.name not in _FINAL_NAMES for source in spec.inputs}
    return [spec for spec in specs if spec not in used_sources and spec.name not in _FINAL_NAMES]
