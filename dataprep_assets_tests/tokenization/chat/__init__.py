"""Tests of `dataprep_assets.tokenization.chat`."""
