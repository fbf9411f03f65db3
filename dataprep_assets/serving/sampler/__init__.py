"""The tokens that a training run reads, and their order."""
