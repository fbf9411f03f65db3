"""The datasets of NAME."""
