"""Cohorts of clinical notes: from one JSON file a month of birth to directories that TFDS and grain read."""
