"""One module an artifact: an asset factory of a few lines around one pure function of `builds/`."""
