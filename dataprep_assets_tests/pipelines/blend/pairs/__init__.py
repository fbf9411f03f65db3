"""Tests of blends of preference pairs."""
