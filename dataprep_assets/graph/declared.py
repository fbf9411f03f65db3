"""The base class of every part of a declaration: strict, and frozen once it is validated."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class Declared(BaseModel):
    """A part of the YAML: unknown keys are errors, values do not change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    elsewhere: ClassVar[Mapping[str, str]] = {}
    """Keys of other tools → what to write here instead; errors suggest it to whoever writes such a key."""
