"""Tests of `dataprep_assets.documents`."""
