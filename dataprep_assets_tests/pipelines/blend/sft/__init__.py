"""Tests of SFT blends."""
