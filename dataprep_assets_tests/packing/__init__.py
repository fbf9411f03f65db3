"""Tests of `dataprep_assets.packing`: each algorithm against the textbook's scan, each row against its definition."""
