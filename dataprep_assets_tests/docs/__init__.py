"""Generators of pages in `docs/`, and tests of all pages."""
