"""One wing a pipeline."""
