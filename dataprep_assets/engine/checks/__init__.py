"""What the checks of an artifact found, and their records."""
