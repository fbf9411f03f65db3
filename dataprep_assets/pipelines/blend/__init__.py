"""The blend pipeline: datasets with weights for pretraining, SFT or RL."""

DATASETS = {"TrainingBlend": "Blend"}
"""Component (in `component.py`) → class of its datasets (in `dataset.py`)."""
