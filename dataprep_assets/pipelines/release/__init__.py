"""The release pipeline: a corpus as npy shards, published for trainers."""

DATASETS = {"ShardRelease": "ReleaseDataset"}
"""Component (in `component.py`) → class of its datasets (in `dataset.py`)."""
