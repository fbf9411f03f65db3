"""The secret key for digests of a sensitive dataset's source files (`stores.files`).

Entry points: `KeyedSources`, `key_needed`.
"""

from typing import Self

from pydantic import Field, model_validator

from dataprep_assets.engine.secret_key import EnvironmentKey
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.stores.files import SourceDigests


class KeyedSources(DatasetDeclaration):
    """A dataset that identifies its source files by keyed digests if it is sensitive."""

    source_key: EnvironmentKey | None = Field(
        None,
        description="Key for the digests of local source files, required with `sensitive: true`. Plain SHA-256 "
        "digests would let owners of a copy recognize their file.",
    )

    @model_validator(mode="after")
    def _key_of_sensitive_data(self) -> Self:
        if self.source_key is not None and not self.sensitive:
            raise ValueError("`source_key` needs `sensitive: true`. Add it, or remove the key")
        if self.sensitive and self.source_key is None and self.may_read_local_files:
            raise ValueError(key_needed("source_key", "SOURCE_KEY"))
        return self

    @property
    def may_read_local_files(self) -> bool:
        """Whether the sources may include local files, as far as the declaration shows."""
        return True

    def source_digests(self) -> SourceDigests:
        """Return the digests of local source files; raise ConfigError if the key is not in the environment."""
        return SourceDigests(self.source_key.load("source_key") if self.source_key is not None else None)


def key_needed(setting: str, variable: str) -> str:
    """Return the message for a sensitive dataset that reads local files without the key `setting` in its YAML."""
    return (
        f"`sensitive: true` with local files needs `{setting}: {{env: {variable}}}`, a variable with a key of at least "
        "32 characters. Plain SHA-256 digests would let owners of a copy recognize their file"
    )
