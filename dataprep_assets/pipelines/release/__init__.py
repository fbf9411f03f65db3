"""The release pipeline: a corpus as npy shards, published for trainers."""
