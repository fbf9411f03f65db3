"""Proofs: digests, ledgers, receipts, atomic commits, and verification from receipts alone."""
