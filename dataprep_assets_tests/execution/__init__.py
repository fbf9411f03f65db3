"""Tests of worker processes and of Ray clusters."""
