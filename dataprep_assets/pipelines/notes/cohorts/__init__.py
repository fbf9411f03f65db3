"""Packed cohorts: rows of notes, and the shards that hold them."""
