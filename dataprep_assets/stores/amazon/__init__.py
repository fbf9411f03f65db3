"""Stores in S3-compatible buckets."""
