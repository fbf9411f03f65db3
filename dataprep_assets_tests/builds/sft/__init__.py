"""Tests of `dataprep_assets.builds.sft`."""
