"""The secret under which the digests of a sensitive dataset's source files are kept (`sources.digests`).

Entry point: `KeyedSources`.
"""

from typing import Self

from pydantic import Field, model_validator

from dataprep_assets.graph.declaration import DatasetDeclaration
from dataprep_assets.graph.secret_key import EnvironmentKey
from dataprep_assets.sources.digests import SourceDigests

__all__ = ["KeyedSources"]


class KeyedSources(DatasetDeclaration):
    """A dataset whose source files may be told apart by keyed digests."""

    source_key: EnvironmentKey | None = Field(
        None,
        description="With `sensitive: true`: key of the digests of local source files; default: their SHA-256, which "
        "tells whoever has a copy of a file that it is among them.",
    )

    @model_validator(mode="after")
    def _key_of_sensitive_data(self) -> Self:
        if self.source_key is not None and not self.sensitive:
            raise ValueError("`source_key` belongs to `sensitive: true`: add that, or leave the key out")
        return self

    def source_digests(self) -> SourceDigests:
        """What stands for local source files; raises ConfigError when the key is not in the environment."""
        return SourceDigests(self.source_key.load("source_key") if self.source_key is not None else None)
