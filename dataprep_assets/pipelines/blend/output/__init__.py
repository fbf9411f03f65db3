"""What a trainer is given: its entry, the realised blend, the layout of runs."""
