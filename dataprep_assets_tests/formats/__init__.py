"""Tests of `dataprep_assets.formats`: each format against its own validator and against its real readers."""
