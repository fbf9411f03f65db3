"""Shard cache of a release on a training machine."""
