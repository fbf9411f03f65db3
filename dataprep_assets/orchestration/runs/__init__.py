"""Dagster runs of a dataset: planning, execution, records and progress."""
