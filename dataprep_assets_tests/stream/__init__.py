"""Tests of `dataprep_assets.stream`."""
