"""The tasks pipeline: task folders of an old project, migrated into a new one."""

DATASETS = {"TaskMigration": "Tasks"}
"""Component (in `component.py`) → class of its datasets (in `dataset.py`)."""
