"""The secret key for digests of a sensitive dataset's source files (`stores.files`).

Entry points: `KeyedSources`, `describe_missing_key`.
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
        description=(
            "Secret key for the digests of local source files and for the ids of a blend's rows. Required with "
            "`sensitive: true`, because a plain SHA-256 would identify a file to anyone who has a copy."
        ),
    )

    @model_validator(mode="after")
    def _require_key_of_sensitive_data(self) -> Self:
        if self.source_key is not None and not self.sensitive:
            raise ValueError("`source_key` needs `sensitive: true`. Add it, or remove the key")
        if self.sensitive and self.source_key is None and self.may_read_local_files:
            raise ValueError(describe_missing_key("source_key", "SOURCE_KEY"))
        return self

    @property
    def may_read_local_files(self) -> bool:
        """Whether the sources may include local files, as far as the declaration shows."""
        return True

    def source_digests(self) -> SourceDigests:
        """Return the digests of local source files; raise ConfigError if the key is not in the environment."""
        return SourceDigests(self.source_key.load("source_key") if self.source_key is not None else None)


def describe_missing_key(setting: str, variable: str) -> str:
    """Return the message for a sensitive dataset that reads local files without the key `setting` in its YAML."""
    return (
        f"`sensitive: true` with local files needs `{setting}: {{env: {variable}}}`, a variable with a key of at least "
        "32 characters. Plain SHA-256 digests would let owners of a copy recognize their file"
    )
