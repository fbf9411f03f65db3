"""Readers of rows and documents in files of any format."""
