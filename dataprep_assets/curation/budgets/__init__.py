"""Counts of the documents that rules drop, and their comparison with the declared budget."""
