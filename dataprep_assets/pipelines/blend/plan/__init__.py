"""What a blend reads of each dataset: weights, files, shards."""
