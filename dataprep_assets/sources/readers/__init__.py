"""Rows and documents of files of any format."""
