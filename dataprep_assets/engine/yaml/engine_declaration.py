"""Who makes a dataset whose heavy steps are tasks of an engine (`execution.pool`): worker processes or Ray.

Entry point: `MadeByEngine`.
"""

from typing import Literal

from pydantic import Field

from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.execution.pool import TaskEngine


class MadeByEngine(DatasetDeclaration):
    """A dataset whose shards, or months, are made and proven by workers. None of this decides a byte of it."""

    run_on: Literal["processes", "ray"] | None = Field(
        None,
        description="Who makes and proves the shards (of notes: the months): worker `processes` of the run's machine, "
        "or the tasks of a `ray` cluster (RAY_ADDRESS, else one for the run); default: DATAPREP_ENGINE, else "
        "`processes`.",
    )

    @property
    def engine(self) -> TaskEngine:
        """Who makes it."""
        return TaskEngine(self.run_on)
