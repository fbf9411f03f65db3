"""Tests of RL data."""
