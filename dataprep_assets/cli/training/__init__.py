"""Commands about what a training run reads."""
