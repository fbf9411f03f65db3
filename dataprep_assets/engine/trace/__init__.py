"""Locations of documents in artifacts, and their removal."""
