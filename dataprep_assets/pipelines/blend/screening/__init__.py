"""Search for benchmark items in the rows of a blend."""
