"""Patient key of a dataset of notes, and the key's digest for artifact keys.

`reading` computes the digests of patient ids, and `SourceDigests` the digests of source files.
"""

import hmac
from typing import Self

from pydantic import ConfigDict, Field, model_validator

from dataprep_assets.engine.secret_key import checked_key, key_from_environment
from dataprep_assets.engine.yaml.declared_model import Declared


class PatientKey(Declared):
    """The secret key for digests of patient ids (HMAC-SHA256)."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    env: str | None = Field(None, description="Environment variable with the key, at least 32 characters.")
    public: str | None = Field(None, repr=False, description="A key in the YAML, only for fictional data.")

    @model_validator(mode="after")
    def _require_one(self) -> Self:
        if (self.env is None) == (self.public is None):
            raise ValueError("exactly one of `env` and `public` is required")
        return self

    def load(self) -> bytes:
        """Read the key; raises ConfigError, without showing it, if it is not set or too short."""
        if self.env is not None:
            return key_from_environment("patient_key", self.env)
        return checked_key("patient_key", "public", self.public)


def key_digest(key: bytes) -> str:
    """Return the digest of a patient key for artifact keys: 16 hex digits that do not reveal the key."""
    return hmac.digest(key, b"dataprep_assets/patient_key", "sha256").hex()[:16]
