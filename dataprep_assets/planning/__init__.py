"""Planning as pure functions: from file lists to manifests and shards."""
