"""Tests of everything that turns artifacts into Dagster's assets, checks and runs."""
