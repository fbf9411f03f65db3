"""The blend pipeline: datasets with weights for pretraining, SFT or RL."""
