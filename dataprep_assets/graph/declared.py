"""What every part of a declaration is: strict, and fixed once it is validated."""

from pydantic import BaseModel, ConfigDict

__all__ = ["Declared"]


class Declared(BaseModel):
    """A part of the YAML: unknown keys are errors, values do not change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True)
