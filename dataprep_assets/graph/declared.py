"""What every part of a declaration is: strict, and fixed once it is validated."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

__all__ = ["Declared"]


class Declared(BaseModel):
    """A part of the YAML: unknown keys are errors, values do not change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    elsewhere: ClassVar[Mapping[str, str]] = {}
    """Keys that other tools have, with what says the same here: told to who writes one of them."""
