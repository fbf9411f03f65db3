"""Rows of conversations, preference pairs and RL records, in the form that each trainer reads."""
