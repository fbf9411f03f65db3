"""Taggers that classify documents with a model of the user."""
