"""Tests of `dataprep_assets.curation`."""
