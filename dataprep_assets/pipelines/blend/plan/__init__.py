"""Plan of a blend: weights, files and shards of each dataset."""
