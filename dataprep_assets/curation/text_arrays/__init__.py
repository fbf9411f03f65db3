"""Texts of a batch in NumPy arrays: words and lines, hashes of words and their runs, places of personal data."""
