"""Taggers that write a Parquet file: a command, or an asset of the project."""
