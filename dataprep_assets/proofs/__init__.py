"""Proofs: pure functions that decide whether an artifact is good, shared by asset checks and offline verification."""
