"""Benchmarks, and the documents that hold their items."""
