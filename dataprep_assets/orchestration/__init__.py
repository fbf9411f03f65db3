"""Dagster integration: assets, checks, jobs, runs and automation of datasets."""
