"""Locks of datasets, and how two of them differ."""
