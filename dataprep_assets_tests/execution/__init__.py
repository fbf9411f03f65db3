"""Who does the work: worker processes or a Ray cluster."""
