"""The specification, recipe, facts and build of an artifact."""
