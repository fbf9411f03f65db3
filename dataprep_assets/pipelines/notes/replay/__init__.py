"""Other cohorts mixed into notes."""
