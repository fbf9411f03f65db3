"""Declared automation: sensors, schedules and freshness checks."""
