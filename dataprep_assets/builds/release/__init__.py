"""Builds a release: npy shards as a view of the token stream, and their publication to a store."""
