"""The base class of every part of a declaration: strict, and frozen once it is validated."""

from pydantic import BaseModel, ConfigDict

PARTITION = r"^[A-Za-z0-9_](\.{0,2}[A-Za-z0-9_-])*\.{0,2}$"
"""Pattern of a name in a partition's key, in which Dagster reads `...` as a range of partitions."""


class Declared(BaseModel):
    """A part of the YAML: unknown keys are errors, values do not change after validation."""

    # a model is compiled, with all that are inside of it, when it is first validated: else each is, when it is imported
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
