"""Tests of training blends."""
