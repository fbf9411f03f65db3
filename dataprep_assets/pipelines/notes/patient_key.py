"""Patient key of a dataset of notes, and the key's digest for artifact keys.

`reading` computes the digests of patient ids, and `SourceDigests` the digests of source files.
"""

import hmac
from typing import Self

from pydantic import ConfigDict, Field, model_validator

from dataprep_assets.engine.secret_key import encode_key, read_key
from dataprep_assets.engine.yaml.declaration_model import DeclarationModel


class PatientKey(DeclarationModel):
    """Secret key for digests of patient ids (HMAC-SHA256); either `env` or `public` is set."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    env: str | None = Field(
        None, description="Name of the environment variable with the key, which must have at least 32 characters."
    )
    public: str | None = Field(
        None, repr=False, description="The key itself, only for fictional data (`sensitive: false`)."
    )

    @model_validator(mode="after")
    def _require_one(self) -> Self:
        if (self.env is None) == (self.public is None):
            raise ValueError("exactly one of `env` and `public` is required")
        return self

    def load(self) -> bytes:
        """Read the key; raises ConfigError, without showing it, if it is not set or too short."""
        if self.env is not None:
            return read_key("patient_key", self.env)
        return encode_key("patient_key", "public", self.public)


def digest_key(key: bytes) -> str:
    """Return the digest of a patient key for artifact keys: 16 hex digits that do not reveal the key."""
    return hmac.digest(key, b"dataprep_assets/patient_key", "sha256").hex()[:16]
