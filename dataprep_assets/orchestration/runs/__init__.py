"""Dagster's runs of a dataset: planned, started, recorded."""
