"""Integrity of artifacts: digests, ledgers, receipts, atomic commits, and verification using only receipts."""
