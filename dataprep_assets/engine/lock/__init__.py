"""Locks of datasets, and differences between two locks."""
