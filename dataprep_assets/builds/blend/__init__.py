"""Training blends: from a blend's JSON to what a trainer reads, for pretraining, SFT and RL."""
