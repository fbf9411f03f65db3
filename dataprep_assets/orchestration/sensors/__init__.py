"""What Dagster does by itself: sensors, schedules, freshness."""
