"""Training data for language models as proven, resumable Dagster assets."""

__version__ = "0.2.0"
