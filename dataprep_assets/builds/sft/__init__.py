"""Builds packed chat data: rows to spooled sequences, sequences to packed Parquet."""
