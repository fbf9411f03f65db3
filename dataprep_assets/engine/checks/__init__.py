"""The checks of an artifact, their findings, and records of them."""
