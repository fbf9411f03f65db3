"""Tests of the shard window and its parts."""
