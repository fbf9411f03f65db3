"""The corpus pipeline: text from its source to validated token bins and views."""

DATASETS = {"TokenizedCorpus": "Corpus"}
"""Component (in `component.py`) → class of its datasets (in `dataset.py`)."""
