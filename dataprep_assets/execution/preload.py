"""What the fork server of `processes` imports, before it forks for the first time."""

from dataprep_assets.execution.processes import preload

preload()
