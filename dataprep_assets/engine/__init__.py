"""Artifacts: their specifications, builds, checks, locks and traces, without Dagster."""
