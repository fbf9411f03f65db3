"""Output for the trainer: its entry files, the realized shares, and the layout of runs."""
