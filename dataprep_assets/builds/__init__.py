"""How each artifact is made: one module an artifact, pure of Dagster, called by its asset and by the tests alike."""
