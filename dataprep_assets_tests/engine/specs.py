"""Specs of artifacts that are never built, for tests of the graph."""

from typing import Any

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration


def make_spec(dataset: str, name: str, **more: Any) -> ArtifactSpec:
    """Return an artifact of a dataset; `more` has further fields of its spec."""
    return ArtifactSpec(
        declaration=DatasetDeclaration(dataset=dataset),
        name=name,
        description=name,
        kinds=set(),
        build=lambda _: [],
        recipes=lambda _store, _slots: [],
        **more,
    )
