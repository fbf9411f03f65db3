"""Search for benchmark items in documents."""
