"""Tests of artifacts, their specs, and everything that follows from a list of specs."""
