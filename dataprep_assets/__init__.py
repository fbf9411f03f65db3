"""Training data for language models as proven, resumable Dagster assets."""

__version__ = "0.1.0"
