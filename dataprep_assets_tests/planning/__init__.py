"""Tests of `dataprep_assets.planning`."""
