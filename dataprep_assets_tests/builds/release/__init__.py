"""Tests of npy shards and their publication."""
