"""Who makes a dataset whose heavy steps are tasks of an engine (`execution.pool`): worker processes, Ray or Slurm.

Entry point: `MadeByEngine`.
"""

from typing import Literal

from pydantic import Field

from dataprep_assets.execution.pool import Engine
from dataprep_assets.graph.declaration import DatasetDeclaration
from dataprep_assets.graph.declared import Declared


class SlurmDeclaration(Declared):
    """How the arrays of a dataset are submitted; what is not set is DATAPREP_SLURM_…'s, else the cluster's."""

    partition: str | None = Field(None, description="`--partition`; default: DATAPREP_SLURM_PARTITION.")
    account: str | None = Field(None, description="`--account`; default: DATAPREP_SLURM_ACCOUNT.")
    time: str | None = Field(
        None, description="`--time` of a shard, in quotes: `'2:00:00'`; default: DATAPREP_SLURM_TIME."
    )
    memory: str | None = Field(None, description="`--mem` of a shard, such as `2G`; default: DATAPREP_SLURM_MEMORY.")
    width: int | None = Field(
        None, ge=1, description="Shards of an array that run at a time; default: DATAPREP_SLURM_WIDTH, else all."
    )
    options: str | None = Field(
        None, description="Further words for `sbatch`, such as `--qos=low`; default: DATAPREP_SLURM_OPTIONS."
    )


class MadeByEngine(DatasetDeclaration):
    """A dataset whose shards, or months, are made and proven by workers. None of this decides a byte of it."""

    run_on: Literal["processes", "ray", "slurm"] | None = Field(
        None,
        description="Who makes and proves the shards (of notes: the months): worker `processes` of the run's machine, "
        "the tasks of a `ray` cluster (RAY_ADDRESS, else one for the run), or of `slurm` arrays; default: "
        "DATAPREP_ENGINE, else `processes`.",
    )
    slurm: SlurmDeclaration = Field(SlurmDeclaration(), description="With `run_on: slurm`: how arrays are submitted.")

    @property
    def engine(self) -> Engine:
        """Who makes it."""
        return Engine(self.run_on, self.slurm.model_dump(exclude_none=True))
