"""Tests of `dataprep_assets.integrity`."""
