"""Tests of `dataprep_assets.pipelines`, one folder per pipeline."""
