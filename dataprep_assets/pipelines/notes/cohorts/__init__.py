"""Packed cohorts: rows of notes, and the shards that contain them."""
