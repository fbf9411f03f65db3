"""Hostile files, made by generators from a seed, through `dataprep run` itself."""
