"""Tests of RL blends."""
