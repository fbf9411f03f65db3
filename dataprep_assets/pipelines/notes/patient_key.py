"""The key of a dataset of notes, and what it makes of patients and of source files: digests that give neither away.

What of a patient's id is stored is a digest of its own (`reading`); here is what enters artifact keys and receipts.
"""

import hmac
from typing import Self

from pydantic import ConfigDict, Field, model_validator

from dataprep_assets.graph.declaration import Declared
from dataprep_assets.graph.secret_key import checked_key, key_from_environment

__all__ = ["PatientKey", "cohort_digest", "key_digest"]


class PatientKey(Declared):
    """The secret that turns patient ids into digests, by HMAC-SHA256."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    env: str | None = Field(None, description="Environment variable that holds the key, at least 32 characters.")
    public: str | None = Field(None, repr=False, description="A key in the YAML, for fictional data alone.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.env is None) == (self.public is None):
            raise ValueError("give exactly one of `env` and `public`")
        return self

    def load(self) -> bytes:
        """The key; ConfigError, without it, when it is not there or too short."""
        if self.env is not None:
            return key_from_environment("patient_key", self.env)
        return checked_key("patient_key", "public", self.public)


def key_digest(key: bytes) -> str:
    """What of a patient key enters artifact keys: 16 hex digits that do not give it away."""
    return hmac.digest(key, b"dataprep_assets/patient_key", "sha256").hex()[:16]


def cohort_digest(key: bytes, sha256: str, *, sensitive: bool) -> str:
    """What stands for a cohort file in keys and receipts.

    Args:
        key: The patient key.
        sha256: The file's SHA-256, hex.
        sensitive: The digest is keyed then, because a plain one would tell whoever has a copy of a file that it is
            among the sources.
    """
    if not sensitive:
        return sha256
    return hmac.digest(key, b"dataprep_assets/cohort_file\0" + sha256.encode(), "sha256").hex()
