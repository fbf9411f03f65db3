"""Duplicates: words of texts, signatures of shards, candidates among them, and the documents that are kept."""
