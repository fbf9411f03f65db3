"""The base class of every part of a declaration: strict, and frozen after validation."""

from pydantic import BaseModel, ConfigDict

PARTITION = r"^[A-Za-z0-9_](\.{0,2}[A-Za-z0-9_-])*\.{0,2}$"
"""Pattern of a name in a partition's key. `...` is excluded, because Dagster reads it as a range of partitions."""


class DeclarationModel(BaseModel):
    """A part of the YAML. Unknown keys are errors, and values do not change after validation."""

    # Compile models at the first validation instead of at import, to keep imports fast.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
