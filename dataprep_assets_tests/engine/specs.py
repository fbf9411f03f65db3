"""Specs of artifacts that nothing builds, for what follows from the graph alone."""

from typing import Any

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration


def spec(dataset: str, name: str, **more: Any) -> ArtifactSpec:
    """An artifact of a dataset; `more` are further fields of its spec."""
    return ArtifactSpec(
        declaration=DatasetDeclaration(dataset=dataset),
        name=name,
        description=name,
        kinds=set(),
        build=lambda _: [],
        recipes=lambda _store, _slots: [],
        **more,
    )
