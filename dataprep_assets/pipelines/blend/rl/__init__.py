"""Blends with `stage: rl`: records for reinforcement learning."""
