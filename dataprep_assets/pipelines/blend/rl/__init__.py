"""The stage `rl` of a blend: records for reinforcement learning."""
