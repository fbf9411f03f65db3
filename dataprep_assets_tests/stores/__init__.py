"""Tests of dataprep_assets.stores."""
