"""Preference pairs: prompts with a chosen and a rejected answer, rendered, encoded and checked."""
