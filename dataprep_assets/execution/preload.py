"""Module that the fork server of `processes` imports before its first fork."""

from dataprep_assets.execution.processes import preload_modules

preload_modules()
