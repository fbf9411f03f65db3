"""Tests of dataprep_assets.sources."""
