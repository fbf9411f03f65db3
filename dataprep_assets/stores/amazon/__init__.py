"""Buckets that speak S3."""
