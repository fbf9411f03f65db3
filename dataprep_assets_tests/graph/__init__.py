"""Tests of what follows from specs."""
