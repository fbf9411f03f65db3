"""Generate hostile files from a seed, and read them with `dataprep run` itself."""
