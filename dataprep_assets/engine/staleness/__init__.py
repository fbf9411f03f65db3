"""Decisions: the action for each partition, its reason, and its expected cost."""
