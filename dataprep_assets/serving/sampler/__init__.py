"""Which tokens a training run reads, in which order."""
