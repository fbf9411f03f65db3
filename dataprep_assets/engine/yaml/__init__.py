"""Declarations in YAML, and messages for mistakes in them."""
