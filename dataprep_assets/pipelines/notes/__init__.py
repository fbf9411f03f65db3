"""The notes pipeline: clinical notes by birth month, packed into rows."""

DATASETS = {"PackedCohorts": "Notes", "CombinedCohorts": "CohortMixture"}
"""Component (in `component.py`) → class of its datasets (in `dataset.py`)."""
